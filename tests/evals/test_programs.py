"""Programs out of answers: fences of other languages, several functions, what a stop word cuts, and CRLF."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from iha.evals.grading import extract
from iha.evals.programs import STOPS, code_of, complete, defines, function_under_test, humaneval_tests, mbpp_tests
from iha.evals.tasks import BENCHMARKS

DATA = os.environ.get("IHA_TEST_DATA")
NEWLINES = "\n" * 300_000
DEF = "def f(x):\n    return x + 1"


@pytest.mark.parametrize("language", ["bash", "sh", "text", "c++", "objective-c", "json", "shell-session", "c#", ""])
def test_a_fence_of_another_kind_before_the_program_does_not_hide_it(language):
    text = f"First:\n```{language}\npip install x\n```\nThen:\n```python\n{DEF}\n```\nand\n```{language}\n2\n```\n"
    assert code_of(text) == DEF
    assert complete("def f(x):\n", text, "f") == DEF


@pytest.mark.parametrize("language", ["python", "Python", "PYTHON", "python3", "Python3", "py", "", " python", "\tpy "])
def test_a_python_fence_is_known_however_it_is_written(language):
    assert code_of(f"```text\nx\n```\n```{language}\n{DEF}\n```\n```text\ny\n```") == DEF


def test_a_fence_of_another_language_counts_where_there_is_no_other():
    assert code_of("```text\nx = 1\n```") == "x = 1"
    assert code_of(f"```ruby\nx = 1\n```\n```pycon\n{DEF}\n```") == DEF


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (f"```python\n{DEF}\n```\n```python\nprint(f(1))\n```", DEF),
        ("```python\nx = 1\n```\n```python\ny = 2\n```", "y = 2"),
        ("```python\nclass A:\n    pass\n```\n```python\nA()\n```", "class A:\n    pass"),
        ("```python\nasync def f():\n    pass\n```\n```python\nf()\n```", "async def f():\n    pass"),
        ("```python\n\n\n```\nNothing.", "```python\n\n\n```\nNothing."),
        ("Use `f` and ```inline``` code.\nx = 1", "Use `f` and ```inline``` code.\nx = 1"),
        ("[BEGIN]\r\nx = 1\r\n[DONE]\r\nmore", "x = 1"),
        ("[BEGIN]\n    x = 1\n", "    x = 1"),
        ("x = 1\n[DONE]\n[BEGIN]\ny = 2\n[DONE]", "y = 2"),
        ("[DONE]", None),
        ("```python\r\nx = 1\r\ny = 2\r\n```", "x = 1\ny = 2"),
        ("    ```python\n    x = 1\n    ```", "x = 1"),
        ("é = '😀'", "é = '😀'"),
    ],
)
def test_the_program_of_an_answer(text, code):
    assert extract("mbpp", text) == code


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("def f(x): pass", True),
        ("def f (x): pass", True),
        ("async def f(x): pass", True),
        ("x = 1\ndef f(): pass", True),
        ("    def f(x): pass", False),
        ("def ff(x): pass", False),
        ("def af(x): pass", False),
        ("# def f(x)", False),
    ],
)
def test_a_program_defines_a_function_at_top_level_only(code, found):
    assert defines(code, "f") is found


def test_names_are_not_patterns():
    assert not defines("def fxx(): pass", "f.x")


@pytest.mark.parametrize("stop", STOPS)
def test_a_completion_ends_at_the_first_stop_word(stop):
    other = next(s for s in STOPS if s != stop)
    assert complete("def f(x):\n", f"    return x{stop} and more{other}", "f") == "def f(x):\n    return x\n"


def test_only_what_a_caller_names_stops_a_completion():
    assert complete("def f(x):\n", "    return x\nclass A: pass", "f", stops=("END",)).endswith("class A: pass\n")


def test_helpers_and_imports_of_the_prompt_stand_before_an_answer_that_repeats_the_function():
    prompt = "import math\n\ndef half(x):\n    return x / 2\n\ndef f(x):\n    '''Doc: def f(x) twice.'''\n"
    answer = "def f(x):\n    return half(x)"
    program = complete(prompt, f"```python\n{answer}\n```", "f")
    assert program == "import math\n\ndef half(x):\n    return x / 2\n\n" + answer
    space = {}
    exec(program, space)
    assert space["f"](6) == 3


def test_an_empty_answer_leaves_the_prompt():
    assert complete("def f(x):\n", "", "f") == "def f(x):\n\n"


def test_tests_are_statements_that_raise():
    space = {}
    exec(DEF + "\n" + humaneval_tests("def check(c):\n    assert c(1) == 2", "f"), space)
    exec(mbpp_tests("k = 2\r\nj = 3", ["assert f(1) == k", "assert f(k) == j"]), space)
    with pytest.raises(AssertionError):
        exec(mbpp_tests("", ["assert f(1) == 3"]), space)
    assert mbpp_tests("", []) == "\n"


PROMPT = 'from typing import List\n\ndef add(a, b):\n    """Add."""\n'


def runs(program):
    scope = {}
    try:
        exec(compile(program, "p", "exec"), scope)
    except SyntaxError:
        return False
    return scope["add"](1, 2) == 3


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("    return a + b", True),
        ("return a + b", False),
        ("\n    return a + b", True),
        ("Sure:\n```python\ndef add(a: List[int], b):\n    return a + b\n```\nDone.", True),
        (
            "```python\nfrom math import pi\ndef add(a, b):\n    return helper(a, b)\ndef helper(a, b):\n    return a + b\n```",
            True,
        ),
        ("```\n    return a + b\n```", True),
        ("    return a + b\n\ndef add(a, b):\n    return 0\n", True),
        ("    return a + b\nprint(add(1))", True),
        ("    return a + b\n# add(1, 2)\n```", True),
        ("def add(a, b):\n    return a + b\n", True),
    ],
)
def test_completions(text, right):
    assert runs(complete(PROMPT, text, "add")) is right


def test_a_stripped_prompt_breaks_the_first_completion():
    assert not runs(complete(PROMPT.rstrip("\n"), "    return a + b", "add"))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("def f():\n    return 1\n[DONE]\nmore", "def f():\n    return 1"),
        ("[BEGIN]\ndef f(): pass\n[DONE]", "def f(): pass"),
        ("```python\ndef f(): pass\n```\nUse it:\n```python\nf()\n```", "def f(): pass"),
        ("```py\r\nx = 1\n```", "x = 1"),
        ("```python\ndef f():\n    pass", "def f():\n    pass"),
        ("<think>```python\nwrong\n```</think>```python\nright = 1\n```", "right = 1"),
        ("  \n", None),
    ],
)
def test_program_in_a_text(text, code):
    assert extract("mbpp", text) == code
    assert "<think>" in text or code_of(text) == code


def test_tests_follow_the_program():
    assert humaneval_tests("def check(c): pass", "f").endswith("\ncheck(f)\n")
    assert mbpp_tests("import math\r\nx=1", ["assert a", "assert b"]) == "import math\nx=1\nassert a\nassert b\n"


@pytest.mark.skipif(not DATA, reason="IHA_TEST_DATA is not set: a folder with mbpp.jsonl")
def test_the_test_split_of_mbpp():
    items = [json.loads(line) for line in (Path(DATA) / "mbpp.jsonl").read_text().splitlines()]
    assert [i["task_id"] for i in items if 11 <= i["task_id"] <= 510] == list(range(11, 511))
    assert {2, 3, 4} <= {i["task_id"] for i in items}


def test_loops_in_a_program_are_read_in_one_pass():
    assert code_of(f"```python\nx = 1{NEWLINES}y = 2\n```").startswith("x = 1\n")
    assert code_of("```\n" * 30_000) is not None
    assert complete("def f():\n", f"    return 1{NEWLINES}\ndef", "f").endswith("\n")


CASES = [json.loads(line) for line in Path(__file__).with_name("grading_cases.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("case", [pytest.param(c, id=c["kind"]) for c in CASES if c["what"] == "program"])
def test_reported_texts_pass_by_both_paths(case):
    doc = {"prompt": case["prompt"], "entry_point": case["entry"], "test": "", "test_list": ["assert add(1, 2) == 3"]}
    for name in ("humaneval", "mbpp"):
        program, _ = BENCHMARKS[name].program(doc, case["text"])
        assert runs(program), program
    assert runs(extract("mbpp", case["text"]))


@pytest.mark.parametrize(
    "text",
    [
        "````python\ndef add(a, b):\n    s = '''\n```\n'''\n    return a + b\n````",
        "~~~py\ndef add(a, b):\n    return a + b\n~~~\nand `add`",
        "> ```python\n> def add(a, b):\n>     return a + b\n> ```",
        "```python title=x\ndef add(a, b):\n    return a + b\n```\n```text\n3\n```",
        "```python\nONE = 1\n```\n```python\nprint('unused')\n```\n```python\ndef helper(a):\n    return a * ONE\n```\n```python\ndef add(a, b):\n    return helper(a) + b\n```",
        "Here it is:\n\nfrom math import fsum\n\ndef add(a, b):\n    return int(fsum([a, b]))\n\nIt uses fsum.",
        "```python\nimport math\n```\n```python\nfrom __future__ import annotations\ndef add(a, b):\n    return int(math.fsum([a, b]))\n```",
        "Sure\n\ndef add(a, b):\n    return a + b\n\nDone",
        "[BEGIN]\n```python\ndef add(a, b):\n    return a + b\n```\n[DONE]\n[BEGIN]\nwrong\n[DONE]",
    ],
)
def test_programs_are_found_however_they_are_fenced(text):
    doc = {"prompt": PROMPT, "entry_point": "add", "test": "", "test_list": ["assert set([add(1, 2)]) == set([3])"]}
    for name in ("humaneval", "mbpp"):
        program, _ = BENCHMARKS[name].program(doc, text)
        assert runs(program), program


def test_the_function_that_asserts_call_is_known():
    assert function_under_test(["assert set(f(1)) == set(g(2))"]) in ("f", "g")
    assert function_under_test(["assert sum(1, 2) == 3"]) == "sum"
    assert function_under_test(["assert x"]) is None and function_under_test(["assert ("]) is None
