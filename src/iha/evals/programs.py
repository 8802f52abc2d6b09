"""From a model's text to a program that can be tested: code fences, function completions, stop words (COD-02)."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: Where a function completion of a base model ends (HumanEval's stop words).
STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint", "\n@", "\n```", "<|")
_FENCE = re.compile(r"(?<![\w`])```[ \t]*(?P<language>[\w.+#-]*)[ \t]*\r?\n(?P<code>.*?)(?:\n[ \t]*```|\Z)", re.DOTALL)
_PYTHON = ("", "python", "python3", "py")
_DEFINES = re.compile(r"^[ \t]*(?:async\s+def|def|class)\s", re.MULTILINE)
_MARKED = re.compile(r"\[BEGIN\]\r?\n?(?P<code>.*?)(?:\[DONE\]|\Z)", re.DOTALL)


def code_of(text: str) -> str | None:
    """The program in a text: the last code fence that defines something (a later one may only show its use), else the
    last fence, else what stands between [BEGIN] and [DONE], else the text itself. A fence of another language than
    Python (a shell command, an output) counts only where there is no other.

    Leading spaces are kept: they may be the indentation of a function body. None if nothing but white space is left.
    """
    marks = [m for m in _FENCE.finditer(text) if m["code"].strip()]
    fences = [m["code"] for m in marks if m["language"].lower() in _PYTHON] or [m["code"] for m in marks]
    if fences:
        return next((code for code in reversed(fences) if _DEFINES.search(code)), fences[-1])
    marked = _MARKED.search(text)
    code = marked["code"] if marked else text.split("[DONE]", 1)[0]
    return code.rstrip() or None


def defines(code: str, name: str) -> bool:
    """Whether a program defines the function `name` at top level."""
    return re.search(rf"^(?:async\s+)?def\s+{re.escape(name)}\s*\(", code, re.MULTILINE) is not None


def complete(prompt: str, text: str, entry_point: str, stops: Sequence[str] = STOPS) -> str:
    """The program made of a HumanEval prompt and a model's text.

    A fenced answer that repeats the function replaces the prompt's copy (imports and helpers of the prompt are kept
    before it); anything else is a completion and continues the prompt verbatim, cut at the first stop word.

    Args:
        prompt: the benchmark's prompt, its final newline included.
        text: what the model wrote; neither is stripped.
        entry_point: name of the function under test.
        stops: strings a completion ends at.
    """
    code = code_of(text) if "```" in text else None
    if code is None and not text.lstrip("\r\n").startswith((" ", "\t")) and defines(text, entry_point):
        code = text
    if code is not None and defines(code, entry_point):
        head = re.split(
            rf"^(?=(?:async\s+)?def\s+{re.escape(entry_point)}\s*\()", prompt, maxsplit=1, flags=re.MULTILINE
        )
        return head[0] + code
    body = code if code is not None else text
    cuts = [at for at in (body.find(stop) for stop in stops) if at >= 0]
    return prompt + body[: min(cuts, default=len(body))] + "\n"


def humaneval_tests(test: str, entry_point: str) -> str:
    """HumanEval's check as statements that follow the program."""
    return f"{test}\ncheck({entry_point})\n"


def mbpp_tests(setup: str, asserts: Sequence[str]) -> str:
    """MBPP's set-up code and asserts as statements that follow the program."""
    return "\n".join([setup.replace("\r\n", "\n"), *asserts]) + "\n"
