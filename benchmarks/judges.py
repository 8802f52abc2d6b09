r"""Which judge for MATH answers: four of them on the same pairs of answers, false positives first.

Judges: the rules this project had before (read from git), math-verify alone, math-verify in strict mode behind this
project's normaliser, and the one in use (`iha.evals.judge`: the same normaliser and parser, canonical values).

Pairs, with the right verdict:
1. `gold`: each of the 500 MATH and 1,319 GSM8K answers against itself.
2. `cases`: tests/evals/grading_cases.jsonl.
3. `public`: spellings that the test suites of Math-Verify and of hendrycks' MATH code are about, written anew.
4. `respelled`: MATH answers with \dfrac, \left, spaces, math mode, Unicode, dropped units, another order of members.
5. `changed`: answers with one digit, sign, term, letter, unit or member changed; none may be called equal. What
   sympy proves to be no change is left out.

Run: ``IHA_TEST_DATA=FOLDER python benchmarks/judges.py [--only changed] [--show 20]``; about ten minutes.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
BEFORE = "feac29d"
Pair = tuple[str, str, bool]
Judge = Callable[[str, str], bool]


# -- judges ----------------------------------------------------------------------------------------------------------


def former() -> Judge:
    """The judge of an earlier commit, in a package of its own in a temporary folder."""
    folder = Path(tempfile.mkdtemp()) / "former"
    folder.mkdir()
    (folder / "__init__.py").touch()
    for name in ("algebra", "answers", "grade", "latex", "symbolic", "programs"):
        shown = subprocess.run(
            ["git", "show", f"{BEFORE}:src/iha/evals/{name}.py"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        (folder / f"{name}.py").write_text(shown.stdout.replace("iha.evals", "former"))
    sys.path.insert(0, str(folder.parent))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder.parent), os.environ.get("PYTHONPATH", "")])
    grade = importlib.import_module("former.grade")
    return lambda answer, gold: bool(grade.equal("math500", answer, gold))


def alone() -> Judge:
    """math-verify as its README uses it."""
    from math_verify import verify

    return lambda answer, gold: bool(verify(_parse(f"${gold}$"), _parse(f"${answer}$"), timeout_seconds=5))


def strict() -> Judge:
    """math-verify in strict mode, without rounding, on normalised answers."""
    from math_verify import verify

    from iha.evals.judge import normalise

    def judge(answer: str, gold: str) -> bool:
        one, two = (f"${normalise(text)}$".replace('"', "") for text in (gold, answer))
        if one == two:
            return len(one) > 2
        return bool(
            verify(_parse(one), _parse(two), float_rounding=30, numeric_precision=40, strict=True, timeout_seconds=5)
        )

    return judge


@functools.cache
def _parse(text: str) -> list[object]:
    from math_verify import parse

    return list(parse(text, parsing_timeout=5))


def ours() -> Judge:
    """The judge in use."""
    from iha.evals import grading

    return lambda answer, gold: grading.equal("math500", answer, gold)


JUDGES = {
    "the former rules": former,
    "math-verify": alone,
    "normaliser, math-verify strict": strict,
    "normaliser, canonical values (in use)": ours,
}


# -- pairs -----------------------------------------------------------------------------------------------------------


def rows(name: str) -> list[dict[str, str]]:
    """A file of the folder IHA_TEST_DATA."""
    return [json.loads(line) for line in (Path(os.environ["IHA_TEST_DATA"]) / name).read_text().splitlines()]


def golds() -> list[str]:
    """The answers of MATH."""
    return [row["answer"] for row in rows("math500_test.jsonl")]


def gold() -> Iterator[Pair]:
    """Each gold answer against itself."""
    yield from ((g, g, True) for g in golds())
    yield from ((n, n, True) for n in (row["answer"].rpartition("####")[2].strip() for row in rows("gsm8k_test.jsonl")))


def cases() -> Iterator[Pair]:
    """Pairs that users of neighbouring tools have reported."""
    for line in (ROOT / "tests/evals/grading_cases.jsonl").read_text().splitlines():
        case = json.loads(line)
        if case["what"] == "equal":
            yield case["answer"], case["gold"], case["right"]


def public() -> Iterator[Pair]:
    """What other judges test."""
    for line in (ROOT / "benchmarks/judges.jsonl").read_text().splitlines():
        case = json.loads(line)
        yield case["answer"], case["gold"], case["right"]


def respelled() -> Iterator[Pair]:
    """Other spellings of gold answers."""
    spellings: list[Callable[[str], str]] = [
        lambda a: a.replace(r"\frac", r"\dfrac"),
        lambda a: re.sub(r"\\frac\{(\d)\}\{(\d)\}", r"\\frac\1\2", a),
        lambda a: re.sub(r"\\frac\{(\d+)\}\{(\d+)\}", r"\1/\2", a) if re.fullmatch(r"-?\\frac\{\d+\}\{\d+\}", a) else a,
        lambda a: (
            re.sub(r"([(\[])(.*)([)\]])$", r"\\left\1\2\\right\3", a) if a[-1:] in ")]" and "text" not in a else a
        ),
        lambda a: a if re.search(r"text|\d,(?:\\!\s*)?\d", a) else re.sub(r"\s*([-+=,])\s*", r" \1 ", a),
        lambda a: a if "\\" in a else a.replace(" ", ""),
        lambda a: rf"$\displaystyle {a}$",
        lambda a: rf"\({a}\).",
        lambda a: a.replace("-", "−").replace(r"\pi", "π").replace("^2", "²").replace(r"\infty", "∞"),
        lambda a: re.sub(r"\\sqrt\{(\d)\}", r"\\sqrt\1", a),
        lambda a: re.sub(r"^(\d+)\s*\\text\{[^}]*\}(\^\d)?$", r"\1", a),
        lambda a: a.replace(r"^\circ", r"\text{ degrees}").replace("^{\\circ}", ""),
        lambda a: rf"x={a}" if re.fullmatch(r"-?\d+|-?\\frac\{\d+\}\{\d+\}", a) else a,
        lambda a: rf"{a}\text{{ cm}}" if re.fullmatch(r"\d+|\\frac\{\d+\}\{\d+\}", a) else a,
        lambda a: f"{int(a):,}" if re.fullmatch(r"\d{4,}", a) else a,
        lambda a: (
            ", ".join(reversed(a.split(",")))
            if re.fullmatch(r"-?\d+(?:,\s*-?\d+)+", a) and not re.search(r"\d,\d{3}", a)
            else a
        ),
    ]
    for answer in golds():
        for other in dict.fromkeys(spell(answer) for spell in spellings):
            if other != answer:
                yield other, answer, True


def changed() -> Iterator[Pair]:
    """Gold answers with one thing changed."""
    for answer in golds():
        seen = {answer}
        for other in _changes(answer):
            if other not in seen:
                seen.add(other)
                yield other, answer, False


def _changes(a: str) -> Iterator[str]:  # noqa: PLR0912 (one branch per kind of change)
    for m in re.finditer(r"\d", a):
        for step in (1, 3, 5):
            yield f"{a[: m.start()]}{(int(m[0]) + step) % 10}{a[m.end() :]}"
        if m[0] != "0" or a[: m.start()][-1:].isdigit():
            yield f"{a[: m.start()]}{m[0]}{m[0]}{a[m.end() :]}"
    for m in re.finditer(r"[-+]", a):
        yield f"{a[: m.start()]}{'+' if m[0] == '-' else '-'}{a[m.end() :]}"
        yield a[: m.start()] + a[m.end() :]
    if "\\text" not in a:
        yield f"-{a}" if not a.startswith("-") else a[1:]
        for extra in ("+1", "+x", "-2", "^2", "i", "c", "m", ",1", r"\pi", r"+\sqrt{2}"):
            if not a.endswith("= 0") and (extra != "^2" or not a.endswith("1")):
                yield a + extra
        yield "2" + a if a[:1].isalpha() or a[:1] == "\\" else "3(" + a + ")"
        yield r"\sqrt{" + a + "}"
        yield "{" + a + "}/2" if "," not in a else a + ",7"
    for m in re.finditer(
        r"(?<![\\a-zA-Z{])[a-z](?![a-zA-Z])", re.sub(r"\\text\{[^}]*\}", lambda t: "#" * len(t[0]), a)
    ):
        yield f"{a[: m.start()]}{'w' if m[0] != 'w' else 'v'}{a[m.end() :]}"
        yield a[: m.start()] + a[m.end() :]
    for word in re.finditer(r"\\text\{([^}]*)\}", a):
        for other in ("kg", "Wednesday", "odd", "(Z)"):
            yield a.replace(word[1], other)
    if "^\\circ" in a:
        yield a.replace("^\\circ", "\\text{ cm}")
    parts = a.strip("()[]").split(",")
    if len(parts) > 1 and "\\" not in a:
        yield a.replace("," + parts[-1].strip(), "", 1)
        yield a.replace(parts[0], parts[0] + "," + parts[0], 1)
        if a[0] in "([" and parts[0].strip() != parts[-1].strip():
            yield a[0] + ",".join(reversed(parts)) + a[-1]
    for one, two in (("(", "["), (")", "]"), ("[", "("), ("]", ")")):
        if "," in a and a[:1] in "([" and (a.startswith(one) or a.endswith(two if False else one)) and "infty" in a:
            yield a.replace(one, two, 1)
    m = re.fullmatch(r"(.*)\\frac\{([^{}]+)\}\{([^{}]+)\}(.*)", a)
    if m and m[2] != m[3]:
        yield rf"{m[1]}\frac{{{m[3]}}}{{{m[2]}}}{m[4]}"


def _proven_equal(one: str, two: str) -> bool:
    """Whether sympy shows that a change is none, such as 0 with another sign."""
    from latex2sympy2_extended import latex2sympy
    from sympy import Expr, simplify

    try:
        left, right = (latex2sympy(text.replace("\\left", "").replace("\\right", "")) for text in (one, two))
        return isinstance(left, Expr) and isinstance(right, Expr) and simplify(left - right) == 0
    except Exception:  # it proves nothing
        return False


KINDS = {"gold": gold, "cases": cases, "public": public, "respelled": respelled, "changed": changed}


def main() -> None:
    """Print a table of the judges, and the pairs that one of them gets wrong; one JSON line last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--judges", nargs="+", type=int, default=list(range(len(JUDGES))), help="numbers in the table")
    parser.add_argument("--show", type=int, default=5, help="wrong verdicts to print per judge and kind")
    arguments = parser.parse_args()
    pairs = {kind: list(dict.fromkeys(KINDS[kind]())) for kind in arguments.only}
    verdicts: dict[str, dict[str, dict[Pair, bool]]] = {}
    for name in [list(JUDGES)[number] for number in arguments.judges]:
        judge = JUDGES[name]()
        verdicts[name] = {kind: {pair: _verdict(judge, *pair[:2]) for pair in found} for kind, found in pairs.items()}
    if "changed" in pairs:  # sympy takes long, so only what some judge calls equal is put to it
        called = {pair for found in verdicts.values() for pair, equal in found["changed"].items() if equal}
        no_change = {pair for pair in called if _proven_equal(*pair[:2])}
        pairs["changed"] = [pair for pair in pairs["changed"] if pair not in no_change]
    totals = {kind: Counter(right for *_, right in found) for kind, found in pairs.items()}
    table: dict[str, dict[str, int]] = {name: {"false positives": 0, "true positives": 0} for name in verdicts}
    for name, row in table.items():
        for kind, found in pairs.items():
            wrong = [pair for pair in found if verdicts[name][kind][pair] != pair[2]]
            row[f"{kind} false"] = sum(not right for *_, right in wrong)
            row[f"{kind} true"] = totals[kind][True] - (len(wrong) - row[f"{kind} false"])
            row["false positives"] += row[f"{kind} false"]
            row["true positives"] += row[f"{kind} true"]
            for a, g, right in sorted(wrong, key=lambda w: w[2])[: arguments.show]:
                print(f"  {name}, {kind}: {a!r} against {g!r} is {'not equal' if right else 'EQUAL'}", flush=True)
    print(
        f"\n{'judge':40}"
        + "".join(f"{kind:>22}" for kind in pairs)
        + "   (equal of those that are / of those that are not)"
    )
    for name, found in table.items():
        cells = [f"{found[f'{k} true']}/{totals[k][True]}  {found[f'{k} false']}/{totals[k][False]}" for k in pairs]
        print(f"{name:40}" + "".join(f"{cell:>22}" for cell in cells))
    print(json.dumps(table))


def _verdict(judge: Judge, answer: str, gold: str) -> bool:
    try:
        return judge(answer, gold)
    except Exception:  # a judge that fails has not called them equal
        return False


if __name__ == "__main__":
    main()
