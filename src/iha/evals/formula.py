"""The value of a LaTeX formula, in a process of its own, so that no formula can hang or fill an evaluation.

`value` gives one text per mathematical value: equal formulas have equal values, so equality is transitive. A constant
is a rational number or 30 significant digits; a formula with variables is what it evaluates to at three fixed points of
irregular numbers, which two different formulas do not share. An equation is its difference of sides up to a constant
factor. Nothing is simplified: that can run for ever and may go wrong.

Parsing is `latex2sympy`'s, the parser of math-verify. It and sympy take a second to import and can run for ever inside
one big-integer operation, which no signal interrupts. A child started on first use answers one question per line; for
a question over its time there is no value, and the child is killed and replaced. The time is the child's CPU time, so
that no verdict depends on what else the machine does. Free of torch; the parent never imports sympy.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from fractions import Fraction
from typing import IO, Any

#: CPU-seconds for a question.
SECONDS = 5.0
#: Seconds until the child is ready, and for one that gets no CPU.
START_SECONDS = 120.0
MEMORY = 4 << 30
_POINTS = 3
#: Digits that are computed, that are kept, and that decide whether a number is a simple fraction.
_WORKING, _KEPT, _SURE = 80, 30, 60


class _Child:
    """The process that owns sympy; one question at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = threading.Lock()

    def ask(self, sides: tuple[str, ...], relation: str, seconds: float) -> str | None:
        """The child's answer.

        Raises:
            TimeoutError: it takes more than `seconds` of CPU or more than `MEMORY`.
        """
        with self._lock:
            try:
                process = self._process if self._process and self._owner == os.getpid() else self._start()
                assert process.stdin is not None
                process.stdin.write(json.dumps([sides, relation]).encode() + b"\n")
                process.stdin.flush()
                return _line(process, seconds).decode().strip() or None
            except OSError as error:  # out of time, or dead for want of memory
                self._stop()
                raise TimeoutError(f"no value of {sides}") from error

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, "-m", "iha.evals.formula"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        self._process, self._owner = process, os.getpid()
        _line(process, START_SECONDS)
        return process

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _line(process: subprocess.Popen[bytes], seconds: float) -> bytes:
    """One line of the child's output.

    Raises:
        TimeoutError: none within `seconds` of its CPU time, or within START_SECONDS.
        OSError: the child has exited.
    """
    assert process.stdout is not None
    begun, end, line = _cpu_seconds(process), time.monotonic() + START_SECONDS, b""
    descriptor = process.stdout.fileno()
    while not line.endswith(b"\n"):
        left = min(seconds - (_cpu_seconds(process) - begun), end - time.monotonic())
        if left <= 0:
            raise TimeoutError
        if not select.select([descriptor], [], [], left)[0]:
            continue
        piece = os.read(descriptor, 4096)
        if not piece:
            raise BrokenPipeError("the symbolic grader has exited")
        line += piece
    return line


def _cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    import psutil

    with contextlib.suppress(psutil.Error):
        times = psutil.Process(process.pid).cpu_times()
        return float(times.user + times.system)
    return 0.0


_child = _Child()


@functools.lru_cache(maxsize=65_536)
def value(*sides: str, relation: str = "") -> str | None:
    """The value of a formula, or of the equation or inequality between two; None if it cannot be parsed completely.

    Args:
        sides: one formula, or the two sides of a relation.
        relation: "" for one formula, "=" for an equation, ">" and "\\geq" for inequalities.

    Raises:
        TimeoutError: it takes more than `SECONDS` of CPU or more than `MEMORY`.
    """
    return _child.ask(sides, relation, SECONDS)


# -- inside the child ----------------------------------------------------------------------------------------------


def evaluate(sides: list[str], relation: str) -> str | None:
    """What `value` returns, computed in this process. Imports sympy."""
    import sympy

    parsed = [_parsed(side) for side in sides]
    if not relation:
        return _key(_at_points(parsed[0]))
    values = _at_points(sympy.Add(parsed[0], sympy.Mul(-1, parsed[1])))
    if values is None or not values[0]:
        return None
    factor = values[0] if relation == "=" else abs(values[0])
    return f"{relation} {_key([value / factor for value in values])}"


def _parsed(text: str) -> Any:
    """The formula as sympy.

    Raises:
        ValueError: a letter of the text is not a symbol of the formula, so the parser has left something out.
        Exception: the parser's own, for what it does not understand.
    """
    import sympy
    from latex2sympy2_extended import latex2sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig

    config = ConversionConfig(
        interpret_as_mixed_fractions=False, interpret_contains_as_eq=False, lowercase_symbols=False
    )
    exact = re.sub(r"(\d*)\.(\d+)", lambda m: rf"\frac{{{m[1]}{m[2]}}}{{1{'0' * len(m[2])}}}", text)
    formula = latex2sympy(exact, normalization_config=None, conversion_config=config)
    if not isinstance(formula, sympy.Expr):
        raise ValueError(f"{text}: not an expression")
    formula = formula.subs(sympy.Symbol("i"), sympy.I)
    letters = set(re.findall(r"[a-zA-Z]", re.sub(r"\\[a-zA-Z]+|_\{[^{}]*\}|_.", " ", text))) - set("ei")
    names = "".join(str(atom) for atom in formula.atoms(sympy.Symbol))
    names += "".join(str(atom.func) for atom in formula.atoms(sympy.core.function.AppliedUndef))
    if not letters <= set(names):
        raise ValueError(f"{text}: parsed as {formula}")
    return formula


def _at_points(formula: Any) -> list[Any] | None:
    """What the formula evaluates to: one exact or precise number for a constant, else one number per point."""
    import sympy

    formula = formula.doit()
    formula = formula.replace(
        lambda part: isinstance(part, sympy.core.function.AppliedUndef),
        # a function of which nothing is known: any fixed one that no formula is likely to contain
        lambda part: sympy.cos(sum((_point(f"{part.func}{i}", 0) * a for i, a in enumerate(part.args)), sympy.pi**2)),
    )
    symbols = sorted(formula.free_symbols, key=str)
    if not symbols:
        return [_number(formula)]
    return [_number(formula.subs({s: _point(str(s), at) for s in symbols})) for at in range(_POINTS)]


def _point(name: str, at: int) -> Any:
    """A number for a variable: positive at the first point, negative at the second, of either sign at the third."""
    import sympy

    draw = random.Random(f"{name} {at}")
    sign = (1, -1, draw.choice((1, -1)))[at]
    return sympy.Rational(sign * draw.randrange(10**12, 4 * 10**12), draw.randrange(10**12, 2 * 10**12))


def _number(formula: Any) -> Any:
    """An exact rational, an infinity, or a complex number to many digits.

    Raises:
        ValueError: it has no value.
    """
    import sympy

    if formula.is_Rational or formula in (sympy.oo, -sympy.oo):
        return formula
    number = sympy.N(formula, _WORKING, maxn=20_000)
    parts = [_simple(part) for part in number.as_real_imag()]
    return parts[0] + sympy.I * parts[1]


def _simple(part: Any) -> Any:
    """The fraction that a number is to nearly all of its digits, if that is a simple one; else the number."""
    import sympy

    if not part.is_Float or not part.is_finite:
        if part.is_Rational:
            return part
        raise ValueError(f"{part}: no value")
    if part._prec < 2 or abs(part) < sympy.Float(10) ** -_SURE:
        return sympy.Integer(0)
    exact = sympy.Rational(part)
    near = Fraction(int(exact.p), int(exact.q)).limit_denominator(10**9)
    fraction = sympy.Rational(near.numerator, near.denominator)
    return fraction if abs(fraction - exact) * 10**_SURE < max(abs(exact), 1) else part


def _key(values: list[Any] | None) -> str | None:
    import sympy

    if values is None:
        return None
    texts = []
    for value in values:
        if value in (sympy.oo, -sympy.oo) or value.is_Rational:
            texts.append(str(value))
            continue
        real, imaginary = (p if p.is_Rational else sympy.Float(p, _KEPT) for p in sympy.expand(value).as_real_imag())
        texts.append(f"{real}" + (f" {imaginary}i" if imaginary else ""))
    return "; ".join(texts)


def main(read: IO[str], write: Callable[[str], object]) -> None:
    """Answer one JSON question per line with a value or an empty line, until the input ends."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    sys.set_int_max_str_digits(0)
    evaluate(["x"], "")
    write("ready\n")
    for line in read:
        sides, relation = json.loads(line)
        found = None
        with contextlib.suppress(Exception):
            found = evaluate(sides, relation)
        write(f"{found or ''}\n")


if __name__ == "__main__":
    sys.setrecursionlimit(2000)
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    main(sys.stdin, out.write)
