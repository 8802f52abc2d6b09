"""From a model's text to a program that can be tested: prompt markers, code fences, bare code, function completions.

Fences are those of CommonMark (markdown-it-py), with their length, indentation, info string and nesting.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Sequence

from markdown_it import MarkdownIt

#: Where a function completion of a base model ends (HumanEval's stop words).
STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint", "\n@", "\n```", "<|")
_PYTHON = ("", "python", "python3", "py")
_MARKED = re.compile(r"\[BEGIN\]\r?\n?(?P<code>.*?)(?:\[DONE\]|\Z)", re.DOTALL)
_FUTURE = re.compile(r"^from __future__ import [^\n]*\n?", re.MULTILINE)
#: Lines of bare code that are searched before and after a definition.
_SEARCHED = 400


def code_of(text: str, name: str | None = None) -> str | None:
    """The program in a text.

    The markers [BEGIN] and [DONE] of the prompt are removed first. Then the program is the last fence that defines the
    requested function, with the earlier ones it needs; else the longest run of lines that compiles and defines it;
    else the last fence; else the text. A fence of another language than Python (a shell command, an output) counts only
    where there is no other.

    Leading spaces are kept: they may be the indentation of a function body. None if nothing but white space is left.

    Args:
        text: what the model wrote.
        name: the requested function; None: any function or class.
    """
    marked = _MARKED.search(text)
    text = marked["code"] if marked else text.split("[DONE]", 1)[0]
    fences = _fences(text)
    for at in reversed(range(len(fences))):
        if _wanted(fences[at], name):
            return _with_needed(fences[: at + 1])
    block = None if _is_code(text.splitlines()) else _block(text, name)
    if block is not None:
        return block
    return fences[-1] if fences else text.rstrip() or None


def defines(code: str, name: str) -> bool:
    """Whether a program defines the function `name` at top level."""
    return re.search(rf"^(?:async\s+)?def\s+{re.escape(name)}\s*\(", code, re.MULTILINE) is not None


def complete(prompt: str, text: str, entry_point: str, stops: Sequence[str] = STOPS) -> str:
    """Combine a HumanEval prompt and a model's text into a program.

    An answer that repeats the function replaces the prompt's copy (imports and helpers of the prompt are kept before
    it); anything else is a completion and continues the prompt verbatim, cut at the first stop word.

    Args:
        prompt: the benchmark's prompt, its final newline included.
        text: what the model wrote; neither is stripped.
        entry_point: name of the function under test.
        stops: strings a completion ends at.
    """
    continues = re.match(r"[\r\n]*(?: {2,}|\t)(?!\s*(?:```|~~~))", text) is not None
    code = None if continues else code_of(text, entry_point)
    if code is not None and defines(code, entry_point):
        pattern = rf"^(?=(?:async\s+)?def\s+{re.escape(entry_point)}\s*\()"
        head = re.split(pattern, prompt, maxsplit=1, flags=re.MULTILINE)[0]
        future = "".join(line.rstrip("\n") + "\n" for line in _FUTURE.findall(code))
        return future + head + _FUTURE.sub("", code)
    fences = _fences(text)
    body = fences[-1] if fences and not continues else text
    cuts = [at for at in (body.find(stop) for stop in stops) if at >= 0]
    return prompt + body[: min(cuts, default=len(body))] + "\n"


def function_under_test(asserts: Sequence[str]) -> str | None:
    """The function that MBPP's asserts call; one that is named like a builtin if they call no other."""
    called: list[str] = []
    for line in asserts:
        tree = _compiles(line)
        nodes = [] if tree is None else list(ast.walk(tree))
        called += [n.func.id for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    return next((n for n in called if not hasattr(builtins, n)), called[0] if called else None)


# -- fences ----------------------------------------------------------------------------------------------------------


def _fences(text: str) -> list[str]:
    """Contents of the Python fences, else of all fences that hold something."""
    if "```" not in text and "~~~" not in text:
        return []
    found: list[tuple[str, str]] = []
    for token in MarkdownIt("commonmark").parse(text):
        if token.type == "fence":
            found.append((token.info.strip().split(" ", 1)[0].lower(), token.content.rstrip("\n")))
        elif token.type == "code_block" and "```" in token.content:  # the complete answer is indented
            found += [("python", code) for code in _fences(token.content)]
    found = [(language, code) for language, code in found if code.strip()]
    return [code for language, code in found if language in _PYTHON] or [code for _, code in found]


def _wanted(code: str, name: str | None) -> bool:
    if name is not None:
        return defines(code, name)
    return re.search(r"^[ \t]*(?:async\s+def|def|class)\s", code, re.MULTILINE) is not None


def _with_needed(fences: Sequence[str]) -> str:
    """The last fence, and before it those that define or import what it uses."""
    chosen = [fences[-1]]
    needed = _used(fences[-1]) - _given(fences[-1])
    for fence in reversed(fences[:-1]):
        if needed & _given(fence):
            chosen.insert(0, fence)
            needed = (needed | _used(fence)) - _given(fence)
    future = [line.strip() for fence in chosen[1:] for line in _FUTURE.findall(fence)]
    if future:  # must come first
        chosen = [*dict.fromkeys(future), *(_FUTURE.sub("", fence) for fence in chosen)]
    return "\n".join(chosen)


def _used(code: str) -> set[str]:
    return {n.id for n in _nodes(code) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)} - set(dir(builtins))


def _given(code: str) -> set[str]:
    """Names that a program defines, imports or assigns."""
    names: set[str] = set()
    for node in _nodes(code):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return names


def _nodes(code: str) -> Iterator[ast.AST]:
    tree = _compiles(code)
    return ast.walk(tree) if tree is not None else iter(())


# -- bare code -------------------------------------------------------------------------------------------------------


def _block(text: str, name: str | None) -> str | None:
    """The longest run of lines that compiles and defines the function; of equally long ones, the last."""
    lines = text.replace("\r\n", "\n").split("\n")
    named = r"\w+" if name is None else re.escape(name)
    starts = [i for i, line in enumerate(lines) if re.match(rf"(?:async\s+)?def\s+{named}\s*\(", line)]
    best: list[str] = []
    for start in starts[-20:]:
        end = _end(lines, start)
        if end is None:
            continue
        first = next(s for s in range(max(0, start - _SEARCHED), start + 1) if s == start or _is_code(lines[s:end]))
        if end - first >= len(best):
            best = lines[first:end]
    return "\n".join(best).strip("\n") or None


def _end(lines: Sequence[str], start: int) -> int | None:
    """Where the code that begins with line `start` ends; None if its first statement does not compile."""
    end = min(len(lines), start + _SEARCHED)
    while end > start:
        if _is_code(lines[start:end]):
            return end
        end -= 1
    return None


def _is_code(lines: Sequence[str]) -> bool:
    """Whether lines compile and none is a bare word, as prose of one word would be."""
    if lines and lines[0][:1].isspace():
        return False
    tree = _compiles("\n".join(lines))
    return tree is not None and not any(
        isinstance(n, ast.Expr) and not isinstance(n.value, (ast.Call, ast.Constant, ast.Await)) for n in tree.body
    )


def _compiles(code: str) -> ast.Module | None:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


# -- tests -----------------------------------------------------------------------------------------------------------


def humaneval_tests(test: str, entry_point: str) -> str:
    """HumanEval's check as statements that follow the program."""
    return f"{test}\ncheck({entry_point})\n"


def mbpp_tests(setup: str, asserts: Sequence[str]) -> str:
    """MBPP's set-up code and asserts as statements that follow the program."""
    return "\n".join([setup.replace("\r\n", "\n"), *asserts]) + "\n"
