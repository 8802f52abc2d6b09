"""What runs inside the sandbox: take limits, read the job, run it, give back the nonce. Standard library only.

Started as `python -c <this file>` with the socket, a user id to take (or 0) and the limits as arguments. The nonce
stays unread in the socket until the last assert has passed.
"""

from __future__ import annotations

import marshal
import os
import resource
import sys

#: Processes (threads included), bytes of one file, open files.
PROCESSES, FILE_BYTES, OPEN_FILES = 16, 16 << 20, 64
NONCE_BYTES = 32


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


def receive(socket: int, size: int) -> bytes:
    """Exactly `size` bytes of the socket."""
    data = b""
    while len(data) < size:
        piece = os.read(socket, size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def main(socket: int, uid: int, memory: int, cpu_seconds: int) -> None:
    """Run one job; never returns."""
    # the program may replace anything in these modules, so what judges it is bound before
    write, leave, read = os.write, os._exit, receive
    try:
        limit(uid, memory, cpu_seconds)
        code, tests = marshal.loads(read(socket, int.from_bytes(read(socket, 8), "big")))
        write(socket, b"S")
        module = type(sys)("solution")
        sys.modules["solution"] = module
        sys.argv = ["solution"]
        exec(compile(code, "<program>", "exec"), module.__dict__)
        exec(compile(tests, "<tests>", "exec"), module.__dict__)
        write(socket, b"P" + read(socket, NONCE_BYTES))
    except SystemExit:
        write(socket, b"Fexited before its last assert\n")
    except BaseException as error:
        text = f"{type(error).__name__}: {str(error)[:200]}".replace("\n", " ")
        write(socket, b"F" + text.encode(errors="replace") + b"\n")
    finally:
        leave(0)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
