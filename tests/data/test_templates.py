"""Generated problems: right answers, hub columns, and no test question in training."""

import re
from fractions import Fraction
from typing import get_args

import pytest
import yaml

from iha.data import templates
from iha.data.contamination import Index
from iha.data.templates import TEMPLATES, Task, conversation, is_test, items, prompt, reply, text

TASKS = get_args(Task)
QUESTION = {"gsm8k": "question", "math500": "problem", "mbpp": "text"}
COLUMNS = {
    "gsm8k": {"question", "answer"},
    "math500": {"problem", "solution", "answer", "subject", "level", "unique_id"},
    "mbpp": {"task_id", "text", "code", "test_list", "test_setup_code", "challenge_test_list"},
}


@pytest.mark.parametrize("task", TASKS)
def test_columns_are_the_hubs(task):
    assert all(set(item) == COLUMNS[task] for item in items(task, "test", 30, 0))
    assert all(set(item) == COLUMNS[task] | {"reasoning"} for item in items(task, "train", 30, 0))


@pytest.mark.parametrize("task", TASKS)
def test_items_are_a_function_of_task_split_and_seed(task):
    assert items(task, "test", 20, 3) == items(task, "test", 20, 3)
    assert items(task, "test", 20, 3) != items(task, "test", 20, 4)


@pytest.mark.parametrize("task", TASKS)
def test_no_template_and_operands_stand_in_both_splits(task):
    for template in TEMPLATES[task]:
        pairs = list(template.operands())
        held_out = sum(is_test(template.name, v) for v in pairs)
        assert len(set(pairs)) == len(pairs)
        assert held_out < len(pairs) / 2
    assert sum(is_test(t.name, v) for t in TEMPLATES[task] for v in t.operands()) >= 10


@pytest.mark.parametrize("task", TASKS)
def test_no_test_question_is_in_training(task):
    test = {item[QUESTION[task]] for item in items(task, "test", 300, 0)}
    train = {item[QUESTION[task]] for seed in range(3) for item in items(task, "train", 2000, seed)}
    assert not test & train


@pytest.mark.parametrize("task", TASKS)
def test_no_run_of_words_of_a_test_question_is_in_training_text(task):
    index = Index({str(i): item[QUESTION[task]] for i, item in enumerate(items(task, "test", 200, 0))})
    for item in items(task, "train", 1500, 1):
        assert not index.matches(text(task, item))


def test_gsm8k_answers_are_the_sums_they_state():
    for item in [*items("gsm8k", "train", 300, 0), *items("gsm8k", "test", 100, 0)]:
        sum_, result = re.search(r"<<(.*)=(-?\d+)>>", item["answer"]).groups()
        assert eval(sum_) == int(result) == int(item["answer"].split("#### ")[1])
        assert set(re.findall(r"\d+", sum_)) <= set(re.findall(r"\d+", item["question"]))


def value(latex):
    """The number a template's LaTeX stands for."""
    found = re.fullmatch(r"\\frac\{(\d+)\}\{(\d+)\}", latex)
    return Fraction(*map(int, found.groups())) if found else Fraction(latex)


def test_math_answers_are_right_and_boxed():
    for item in [*items("math500", "train", 300, 0), *items("math500", "test", 100, 0)]:
        assert rf"\boxed{{{item['answer']}}}" in item["solution"]
        given = [Fraction(*map(int, pair)) for pair in re.findall(r"\\frac\{(\d+)\}\{(\d+)\}", item["problem"])]
        if given:
            assert value(item["answer"]) == sum(given)
            numbers = list(map(int, re.findall(r"\d+", item["answer"])))
            assert len(numbers) == 1 or Fraction(*numbers).denominator == numbers[1], "in lowest terms"
        else:
            left, right = map(int, re.findall(r"\d+", item["problem"]))
            assert left + int(item["answer"]) == right


def test_mbpp_code_passes_its_tests_and_a_wrong_one_does_not():
    for item in [*items("mbpp", "train", 100, 0), *items("mbpp", "test", 50, 0)]:
        assert len(item["test_list"]) == 3
        space = {}
        exec(item["code"], space)
        for test in item["test_list"]:
            exec(test, space)
        name = item["code"].split("(")[0].removeprefix("def ")
        with pytest.raises(AssertionError):
            exec(item["test_list"][0], {name: lambda _: None})


def test_questions_repeat_only_after_all_were_used():
    pairs = sum(not is_test(t.name, v) for t in TEMPLATES["mbpp"] for v in t.operands())
    made = [item["text"] for item in items("mbpp", "train", pairs, 0)]
    assert len(set(made)) == pairs
    assert len(items("mbpp", "train", 3 * pairs, 0)) == 3 * pairs


@pytest.mark.parametrize("task", TASKS)
def test_conversations_ask_and_answer_as_the_task_does(task):
    item = items(task, "train", 1, 0)[0]
    user, assistant = conversation(task, item)
    assert (user["role"], user["content"]) == ("user", prompt(task, item))
    assert assistant["content"] == f"<think>\n{item['reasoning']}\n</think>\n\n{reply(task, item)}"
    assert text(task, item).startswith(prompt(task, item))
    assert text(task, item).endswith(reply(task, item))


def test_task_numbers_are_those_of_mbpps_splits():
    assert [item["task_id"] for item in items("mbpp", "test", 3, 0)] == [11, 12, 13]
    assert min(item["task_id"] for item in items("mbpp", "train", 9, 0)) == 601


class _Loader(yaml.SafeLoader):
    """Reads lm-eval's YAML with its functions left as text."""


_Loader.add_multi_constructor("!function", lambda loader, suffix, node: node.value)


@pytest.mark.parametrize(
    ("task", "path"),
    [("gsm8k", "gsm8k/gsm8k.yaml"), ("mbpp", "mbpp/mbpp.yaml"), ("math500", "minerva_math/minerva_math_algebra.yaml")],
)
def test_prompts_are_those_of_the_stock_lm_eval_tasks(task, path):
    from importlib.util import find_spec
    from pathlib import Path

    jinja2 = pytest.importorskip("jinja2")
    spec = find_spec("lm_eval")
    if spec is None:
        pytest.skip("lm-eval is not installed")
    stock = yaml.load((Path(spec.origin).parent / "tasks" / path).read_text(), _Loader)
    item = templates.items(task, "test", 1, 0)[0]
    if task == "math500":
        source = (Path(spec.origin).parent / "tasks/minerva_math/utils.py").read_text()
        assert r'"Problem:" + "\n" + doc["problem"] + "\n\n" + "Solution:"' in source
        assert r"Final Answer: The final answer is(.*?). I hope it is correct." in source
    else:
        rendered = jinja2.Environment(keep_trailing_newline=True).from_string(stock["doc_to_text"]).render(**item)
        assert rendered == prompt(task, item)
