"""Generated problems in the column layout of the benchmarks' hub data sets, for runs without a network.

Items are split by (template, operands): whether a pair is a test pair is a hash of it, so no test question occurs in
the training split under any name, object or seed. Small numbers and short words: a prompt is few tokens even for a
vocabulary of 1,024.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from math import gcd
from typing import Any, Literal

Task = Literal["gsm8k", "math500", "mbpp"]
Split = Literal["train", "test"]
Item = dict[str, Any]
Operands = tuple[int, ...]

NAMES = ("Ann", "Ben", "Dan", "Eve", "Kim", "Leo", "Max", "Sam", "Tim", "Zoe")
OBJECTS = ("pens", "cups", "eggs", "hats", "keys", "nuts")
#: One pair in five is a test pair.
TEST_SHARE = 5


@dataclass(frozen=True)
class Template:
    """One kind of problem: its operands and how an item is built from them and a random choice of words."""

    name: str
    operands: Callable[[], Iterator[Operands]]
    make: Callable[[Operands, random.Random], Item]


def _digits(n: int, keep: Callable[..., bool] = lambda *_: True, low: int = 1, high: int = 9) -> Iterator[Operands]:
    return (values for values in product(range(low, high + 1), repeat=n) if keep(*values))


# GSM8K-shaped ------------------------------------------------------------------------------------------------------


def _gsm(question: str, sum_: str, result: int, ending: str, reasoning: str) -> Item:
    bare = sum_.replace(" ", "").replace("x", "*")
    return {
        "question": question,
        "answer": f"{sum_} = <<{bare}={result}>>{result} {ending}.\n#### {result}",
        "reasoning": reasoning,
    }


def _buy(v: Operands, r: random.Random) -> Item:
    (a, b), n, o = v, r.choice(NAMES), r.choice(OBJECTS)
    question = f"{n} has {a} {o}. {n} buys {b} more. How many {o} does {n} have?"
    return _gsm(question, f"{a} + {b}", a + b, o, f"{a} and {b} more is {a + b}.")


def _give(v: Operands, r: random.Random) -> Item:
    (a, b), n, o = v, r.choice(NAMES), r.choice(OBJECTS)
    question = f"{n} has {a} {o} and gives {b} away. How many {o} are left?"
    return _gsm(question, f"{a} - {b}", a - b, o, f"{a} less {b} is {a - b}.")


def _boxes(v: Operands, r: random.Random) -> Item:
    (a, b), o = v, r.choice(OBJECTS)
    question = f"There are {a} boxes with {b} {o} each. How many {o} are there?"
    return _gsm(question, f"{a} x {b}", a * b, o, f"{a} times {b} is {a * b}.")


def _together(v: Operands, r: random.Random) -> Item:
    (a, b), (n, m), o = v, r.sample(NAMES, 2), r.choice(OBJECTS)
    question = f"{n} has {a} {o}, {m} has {b}. How many {o} do they have in all?"
    return _gsm(question, f"{a} + {b}", a + b, o, f"{a} and {b} is {a + b}.")


def _trade(v: Operands, r: random.Random) -> Item:
    (a, b, c), n, o = v, r.choice(NAMES), r.choice(OBJECTS)
    question = f"{n} has {a} {o}, finds {b} and loses {c}. How many {o} are left?"
    thought = f"{a} and {b} is {a + b}. {a + b} less {c} is {a + b - c}."
    return _gsm(question, f"{a} + {b} - {c}", a + b - c, o, thought)


# MATH-500-shaped ---------------------------------------------------------------------------------------------------


def _fraction(a: int, b: int) -> str:
    d = gcd(a, b)
    return str(a // d) if b == d else rf"\frac{{{a // d}}}{{{b // d}}}"


def _math(problem: str, step: str, answer: str, subject: str, level: int, reasoning: str) -> Item:
    return {
        "problem": problem,
        "solution": rf"{step}$\boxed{{{answer}}}$.",
        "answer": answer,
        "subject": subject,
        "level": level,
        "reasoning": reasoning,
    }


def _simplify(v: Operands, _: random.Random) -> Item:
    a, b, k = v
    problem = rf"Simplify $\frac{{{a * k}}}{{{b * k}}}$."
    thought = f"Both are multiples of {k}."
    return _math(problem, f"Divide both by {k}: ", _fraction(a, b), "Prealgebra", 1, thought)


def _add_fractions(v: Operands, _: random.Random) -> Item:
    a, b, d = v
    problem = rf"Compute $\frac{{{a}}}{{{d}}} + \frac{{{b}}}{{{d}}}$."
    step = rf"The sum is $\frac{{{a + b}}}{{{d}}}$, so "
    return _math(problem, step, _fraction(a + b, d), "Prealgebra", 1, f"{a} and {b} is {a + b}.")


def _solve(v: Operands, _: random.Random) -> Item:
    a, b = v
    step = f"So $x = {a + b} - {a}$, which is "
    return _math(f"Solve $x + {a} = {a + b}$.", step, str(b), "Algebra", 1, f"{a + b} less {a} is {b}.")


# MBPP-shaped -------------------------------------------------------------------------------------------------------


def _mbpp(text: str, name: str, body: str, tests: list[tuple[str, str]], reasoning: str) -> Item:
    return {
        "text": text,
        "code": f"def {name}:\n    return {body}",
        "test_list": [f"assert {name.partition('(')[0]}({given}) == {wanted}" for given, wanted in tests],
        "test_setup_code": "",
        "challenge_test_list": [],
        "reasoning": reasoning,
    }


def _plus(v: Operands, r: random.Random) -> Item:
    (k,) = v
    tests = [(str(n), str(n + k)) for n in r.sample(range(10), 3)]
    return _mbpp(f"Write a function to add {k} to a number.", "add(n)", f"n + {k}", tests, f"Add {k} to n.")


def _times(v: Operands, r: random.Random) -> Item:
    (k,) = v
    tests = [(str(n), str(n * k)) for n in r.sample(range(10), 3)]
    return _mbpp(f"Write a function to multiply a number by {k}.", "mul(n)", f"n * {k}", tests, f"n times {k}.")


def _first(v: Operands, r: random.Random) -> Item:
    (k,) = v
    lists = [[r.randrange(10) for _ in range(k + extra)] for extra in (1, 2, 3)]
    tests = [(str(x), str(x[:k])) for x in lists]
    return _mbpp(
        f"Write a function to take the first {k} items of a list.", "take(x)", f"x[:{k}]", tests, f"Up to {k}."
    )


def _scale_shift(v: Operands, r: random.Random) -> Item:
    a, b = v
    tests = [(str(n), str(n * a + b)) for n in r.sample(range(10), 3)]
    text = f"Write a function to add {b} to {a} times a number."
    return _mbpp(text, "line(n)", f"n * {a} + {b}", tests, f"n times {a}, then add {b}.")


TEMPLATES: dict[str, tuple[Template, ...]] = {
    "gsm8k": (
        Template("buy", lambda: _digits(2), _buy),
        Template("give", lambda: _digits(2, lambda a, b: a > b, high=12), _give),
        Template("boxes", lambda: _digits(2, low=2), _boxes),
        Template("together", lambda: _digits(2), _together),
        Template("trade", lambda: _digits(3, lambda a, b, c: c < a + b, high=6), _trade),
    ),
    "math500": (
        Template("simplify", lambda: _digits(3, lambda a, b, k: a < b and k > 1 and gcd(a, b) == 1), _simplify),
        Template("add_fractions", lambda: _digits(3, lambda a, b, d: a + b < d), _add_fractions),
        Template("solve", lambda: _digits(2), _solve),
    ),
    "mbpp": (
        Template("plus", lambda: _digits(1, high=40), _plus),
        Template("times", lambda: _digits(1, low=2, high=40), _times),
        Template("first", lambda: _digits(1, high=6), _first),
        Template("scale_shift", lambda: _digits(2, low=2), _scale_shift),
    ),
}


def is_test(template: str, operands: Operands) -> bool:
    """Whether a (template, operands) pair belongs to the test split."""
    key = f"{template}:{','.join(map(str, operands))}"
    return hashlib.sha256(key.encode()).digest()[0] % TEST_SHARE == 0


def items(task: Task, split: Split, count: int, seed: int) -> list[Item]:
    """`count` items of a split, in the hub columns of the benchmark; train items also have ``reasoning``.

    Pairs come in a random order and repeat, with other words, only after all were used.
    """
    wanted = split == "test"
    pairs = [(t, v) for t in TEMPLATES[task] for v in t.operands() if is_test(t.name, v) == wanted]
    rng = random.Random(f"{task} {split} {seed}")
    made: list[Item] = []
    while len(made) < count:
        rng.shuffle(pairs)
        made += [
            _finish(task, split, len(made) + i, t.make(v, rng)) for i, (t, v) in enumerate(pairs[: count - len(made)])
        ]
    return made


def _finish(task: Task, split: Split, index: int, item: Item) -> Item:
    if split == "test":
        del item["reasoning"]
    if task == "math500":
        item["unique_id"] = f"{split}/templates/{index}.json"
    if task == "mbpp":
        item["task_id"] = index + (11 if split == "test" else 601)  # the numbers of MBPP's test and train splits
    return item


def prompt(task: Task, item: Item) -> str:
    """The question as the stock lm-eval task asks it, without few-shot examples."""
    if task == "gsm8k":
        return f"Question: {item['question']}\nAnswer:"
    if task == "math500":
        return f"Problem:\n{item['problem']}\n\nSolution:"
    tests = "\n".join(item["test_list"])
    return (
        f"You are an expert Python programmer, and here is your task: {item['text']} Your code should pass these "
        f"tests:\n\n{tests}\n[BEGIN]\n"
    )


def reply(task: Task, item: Item) -> str:
    """The worked answer in the form the stock lm-eval task reads."""
    if task == "gsm8k":
        return str(item["answer"])
    if task == "math500":
        return f"{item['solution']}\nFinal Answer: The final answer is ${item['answer']}$. I hope it is correct."
    return f"{item['code']}\n[DONE]"


def conversation(task: Task, item: Item) -> list[dict[str, str]]:
    """A fine-tuning conversation from a train item: question, ``<think>`` part, answer."""
    answer = f"<think>\n{item['reasoning']}\n</think>\n\n{reply(task, item)}"
    return [{"role": "user", "content": prompt(task, item)}, {"role": "assistant", "content": answer}]


def text(task: Task, item: Item) -> str:
    """Question and answer as plain text, for a pretraining corpus."""
    gap = "" if prompt(task, item).endswith("\n") else " "
    return f"{prompt(task, item)}{gap}{reply(task, item)}"
