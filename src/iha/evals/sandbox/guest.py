"""What runs inside the sandbox: a judge, and the program in a child process of its own. Standard library only.

Started as `python -c <this file>` with the socket, a user id to take (or 0) and the limits as arguments.

The judge runs the tests. Each name of the program that the tests use is a `Remote` in the judge: calling it sends the
arguments to the program's process and receives a plain value (numbers, strings, lists, tuples, sets, dicts, ...) back,
which the judge compares itself. So the program holds neither the tests nor the channel of the verdict, and what it
does to `exec`, `abs`, `==` or the interpreter happens in its own process only. An object that is not a plain value
stays with the program; the judge holds a handle that forwards calls, attributes and items, and equals nothing else.
What this costs an honest program: a test cannot compare two objects of a class that the program defines itself. No
test of HumanEval or MBPP does.
"""

from __future__ import annotations

import builtins
import collections
import decimal
import fractions
import importlib
import json
import os
import resource
import socket
import sys
from collections.abc import Callable
from typing import Any

#: Processes (threads included) of a program, bytes of one file, open files.
PROCESSES, FILE_BYTES, OPEN_FILES = 16, 16 << 20, 64
#: Where the sandbox mounts numpy.
LIBRARIES = "/libraries"
_MESSAGE = 64 << 20
#: Integers of more bits are sent in hexadecimal: Python limits the length of decimal ones.
_LONG = 8192
_PROGRAM = "/tmp/solution.py"


class Left(BaseException):
    """The program's process has ended."""


# -- plain values as JSON: containers and what JSON lacks become {tag: ...}; nothing decoded can run code ------------


def encode(value: Any, keep: Callable[[Any], Any]) -> Any:  # noqa: PLR0911 (one line per type)
    """A JSON value for `value`; `keep(object)` returns the handle of an object that is not plain."""
    if isinstance(value, int) and value.bit_length() > _LONG:
        return {"int": hex(value)}
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytearray" if isinstance(value, bytearray) else "bytes": value.hex()}
    for kind in (list, tuple, set, frozenset, collections.deque):
        if isinstance(value, kind):
            return {kind.__name__: [encode(item, keep) for item in kind.__iter__(value)]}  # type: ignore[arg-type]
    if isinstance(value, dict):
        return {"dict": [[encode(key, keep), encode(item, keep)] for key, item in dict.items(value)]}
    if isinstance(value, range):
        return {"range": [value.start, value.stop, value.step]}
    if isinstance(value, fractions.Fraction):
        return {"Fraction": [value.numerator, value.denominator]}
    if isinstance(value, decimal.Decimal):
        return {"Decimal": str(value)}
    if type(value).__module__ == "numpy" and hasattr(value, "item") and not getattr(value, "ndim", 1):
        return encode(value.item(), keep)
    return {"handle": keep(value)}


def decode(data: Any, find: Callable[[Any], Any] | None) -> Any:
    """The value that `encode` took; `find(handle)` returns what a handle refers to."""
    if not isinstance(data, dict):
        return data
    ((tag, content),) = data.items()
    if tag == "dict":
        return {decode(key, find): decode(item, find) for key, item in content}
    if tag in _CONTAINERS:
        return _CONTAINERS[tag](decode(item, find) for item in content)
    if tag in _SCALARS:
        return _SCALARS[tag](content)
    if find is None:
        raise TypeError(tag)
    return find(content)


_CONTAINERS = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": collections.deque}
_SCALARS: dict[str, Callable[[Any], Any]] = {
    "int": lambda digits: int(digits, 16),
    "complex": lambda parts: complex(*parts),
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "range": lambda parts: range(*parts),
    "Fraction": lambda parts: fractions.Fraction(*parts),
    "Decimal": decimal.Decimal,
}


def send(channel: int, message: Any) -> None:
    """Write one message, its length first."""
    data = json.dumps(message).encode()
    data = len(data).to_bytes(8, "big") + data
    while data:
        data = data[os.write(channel, data) :]


def receive(channel: int) -> Any:
    """Read one message.

    Raises:
        Left: the other side has closed the channel, or sends no message.
    """
    size = int.from_bytes(read(channel, 8), "big")
    if size > _MESSAGE:
        raise Left
    try:
        return json.loads(read(channel, size))
    except ValueError:
        raise Left from None


def read(channel: int, size: int) -> bytes:
    """Exactly `size` bytes.

    Raises:
        Left: the channel ends before.
    """
    data = b""
    while len(data) < size:
        try:
            piece = os.read(channel, min(size - len(data), 1 << 20))
        except OSError:
            piece = b""
        if not piece:
            raise Left
        data += piece
    return data


# -- the judge -----------------------------------------------------------------------------------------------------


class Remote:
    """A name or an object of the program, used from the tests."""

    def __init__(self, channel: int, target: Any) -> None:
        object.__setattr__(self, "_channel", channel)
        object.__setattr__(self, "_target", target)

    def _ask(self, operation: str, *args: Any, **kwargs: Any) -> Any:
        mutable = [args, kwargs]
        send(self._channel, [operation, self._target, encode(mutable, _handle)])
        outcome, content, after = receive(self._channel)
        if outcome == "raised":
            raise _exception(*content)
        if after is not None:  # the program has changed its arguments in place
            for old, new in zip(args, decode(after, self._find), strict=True):
                _update(old, new)
        return decode(content, self._find)

    def _find(self, handle: Any) -> Remote:
        return Remote(self._channel, handle)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it in the program's process; lists, dicts and sets that the call changes are changed here, too."""
        return self._ask("call", *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return self._ask("getattr", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("setattr", name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._ask("getitem", key)

    def __len__(self) -> Any:
        return self._ask("len")

    def __bool__(self) -> bool:
        return self._ask("bool") is True

    def __iter__(self) -> Any:
        return self._ask("iter")

    def __next__(self) -> Any:
        return self._ask("next")

    def __contains__(self, item: Any) -> bool:
        return self._ask("contains", item) is True

    def __str__(self) -> str:
        return str(self._ask("str"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and bool(self._target == other._target)

    def __hash__(self) -> int:
        return hash(str(self._target))


def _handle(value: Any) -> Any:
    if isinstance(value, Remote):
        return value._target
    raise TypeError(f"{type(value).__name__} cannot be passed to the program")


def _update(old: Any, new: Any) -> None:
    if isinstance(old, (list, bytearray)):
        old[:] = new
    elif isinstance(old, (dict, set)):
        old.clear()
        old.update(new)


def _exception(name: str, text: str) -> BaseException:
    kind: Any = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, (Exception, SystemExit)):
        try:
            error: BaseException = kind(text)
            return error
        except TypeError:  # UnicodeDecodeError and its like take more than a text
            pass
    other: type[Exception] = type(name, (Exception,), {})
    return other(text)


def judge(program: int, tests: str) -> None:
    """Run the tests against the program behind the channel `program`; returns if all of them have passed."""
    code = compile(tests, "<tests>", "exec", dont_inherit=True, optimize=0)
    outcome, content, _ = receive(program)
    if outcome == "raised":
        raise _exception(*content)
    used = _names(code) & content.keys()
    # a program may not replace a builtin that the tests use, except where it is all that they test (MBPP/126: sum)
    used = {name for name in used if not hasattr(builtins, name)} or used
    scope: dict[str, Any] = {"__name__": "tests"}
    for name in used:
        kind, value = content[name]
        if kind == "module" and value.partition(".")[0] in sys.stdlib_module_names:
            scope[name] = importlib.import_module(value)
        else:
            scope[name] = decode(value, None) if kind == "value" else Remote(program, name)
    exec(code, scope)


def _names(code: Any) -> set[str]:
    nested = [_names(constant) for constant in code.co_consts if hasattr(constant, "co_names")]
    return set(code.co_names).union(*nested)


# -- the program ---------------------------------------------------------------------------------------------------


class Program:
    """The program's side of the channel."""

    def __init__(self, channel: int) -> None:
        self.channel = channel
        module = type(sys)("solution")
        module.__file__ = _PROGRAM
        sys.modules["solution"] = module
        sys.argv, sys.path = ["solution"], ["/tmp", *sys.path]
        self.scope = module.__dict__
        self.objects: list[Any] = []
        self.handles: dict[int, int] = {}

    def serve(self, source: str) -> None:
        """Run the program, then answer the judge's requests until it closes the channel."""
        self._answer(lambda: (self._load(source), None))
        while True:
            operation, target, request = receive(self.channel)
            self._answer(lambda o=operation, t=target, r=request: self._work(o, t, r))  # type: ignore[misc]

    def _answer(self, work: Callable[[], tuple[Any, Any]]) -> None:
        try:
            message = ["value", *work()]
        except BaseException as error:
            message = ["raised", [type(error).__name__, str(error)[:200]], None]
        send(self.channel, message)

    def _load(self, source: str) -> dict[str, Any]:
        """Run the program; what each of its names is."""
        # a file, so that inspect and multiprocessing find the source
        with open(_PROGRAM, "w", newline="", encoding="utf-8") as file:  # noqa: PTH123 (importing pathlib takes longer)
            file.write(source)
        exec(compile(source, _PROGRAM, "exec", dont_inherit=True, optimize=0), self.scope)
        return {name: self._kind(value) for name, value in self.scope.items()}

    def _kind(self, value: Any) -> tuple[str, Any]:
        if isinstance(value, type(sys)):
            return "module", value.__name__
        try:
            return "value", encode(value, _refuse)
        except (TypeError, RecursionError):
            return "object", None

    def _work(self, operation: str, target: Any, request: Any) -> tuple[Any, Any]:
        args, kwargs = decode(request, self.objects.__getitem__)
        subject = self.scope[target] if isinstance(target, str) else self.objects[target]
        result = encode(OPERATIONS[operation](subject, *args, **kwargs), self._keep)
        after = encode(args, self._keep)
        return result, after if after != request["list"][0] else None

    def _keep(self, value: Any) -> int:
        """The handle of an object that stays in this process."""
        if id(value) not in self.handles:
            self.handles[id(value)] = len(self.objects)
            self.objects.append(value)
        return self.handles[id(value)]


def _refuse(value: Any) -> Any:
    raise TypeError(type(value).__name__)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda subject, *args, **kwargs: subject(*args, **kwargs),
    "getattr": getattr,
    "setattr": setattr,
    "getitem": lambda subject, key: subject[key],
    "len": len,
    "bool": bool,
    "iter": iter,
    "next": next,
    "contains": lambda subject, item: item in subject,
    "str": str,
}


# -- both ----------------------------------------------------------------------------------------------------------


def limit(uid: int, memory: int, cpu_seconds: int) -> None:
    """Give up privileges for good and take the resource limits."""
    if uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    for what, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_NPROC, PROCESSES),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))


def main(channel: int, uid: int, memory: int, cpu_seconds: int) -> None:
    """Judge one program; never returns."""
    try:
        limit(uid, memory, cpu_seconds)
        sys.path.append(LIBRARIES)
        ours, theirs = socket.socketpair()
        # the judge has not read its job yet, so the program's process never holds the tests
        if os.fork() == 0:
            os.close(channel)
            ours.close()
            Program(theirs.fileno()).serve(receive(theirs.fileno()))
        theirs.close()
        program = ours.fileno()
        code, tests = receive(channel)
        send(program, code)
        os.write(channel, b"S")
        judge(program, tests)
        os.write(channel, b"P")
    except (SystemExit, Left):
        os.write(channel, b"Fexited before its last assert\n")
    except BaseException as error:
        text = f"{type(error).__name__}: {str(error)[:200]}".replace("\n", " ")
        os.write(channel, b"F" + text.encode(errors="replace") + b"\n")
    finally:
        os._exit(0)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
