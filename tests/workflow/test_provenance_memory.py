"""What is remembered of sources between starts, odd imports, and the commit that a copy of the code states."""

import ast
import json

import pytest

from iha.artifacts import fingerprint as provenance
from iha.artifacts.fingerprint import canonical, code_fingerprint, git_state, load_summaries, reachable, save_summaries


@pytest.fixture
def fresh(monkeypatch):
    """As a process that has just started."""

    def _fresh():
        monkeypatch.setattr(provenance, "_SUMMARIES", {})
        monkeypatch.setattr(provenance, "_USED", set())
        for remembered in (provenance.find_module, provenance._parsed, provenance._inside):
            remembered.cache_clear()

    _fresh()
    yield _fresh
    for remembered in (provenance.find_module, provenance._parsed, provenance._inside):
        remembered.cache_clear()


@pytest.fixture
def package(tmp_path):
    """Writes a package `pkg`; its folder."""

    def _package(**files: str):
        root = tmp_path / "pkg"
        for name, text in {"__init__": "", **files}.items():
            path = root.joinpath(*name.split("__dot__")).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return root

    return _package


def test_what_is_remembered_saves_parsing_and_changes_no_fingerprint(fresh, package, tmp_path, monkeypatch):
    root, memory = package(stage="from pkg import base\nN = base.M\n", base='"""Doc."""\nM = 1\n'), tmp_path / "m.json"
    first = code_fingerprint("pkg.stage", root=root)
    save_summaries(memory)
    fresh()
    load_summaries(memory)
    with monkeypatch.context() as without:
        without.setattr(provenance.ast, "parse", lambda *_: pytest.fail("parsed a source that is known"))
        assert code_fingerprint("pkg.stage", root=root) == first
    before = memory.stat().st_mtime_ns, memory.read_bytes()
    save_summaries(memory)
    assert (memory.stat().st_mtime_ns, memory.read_bytes()) == before, "written although there was no news"


def test_what_no_process_uses_any_more_is_dropped_when_there_is_news(fresh, package, tmp_path):
    memory = tmp_path / "m.json"
    code_fingerprint("pkg.stage", root=package(stage="N = 1\n"))
    save_summaries(memory)
    fresh()
    load_summaries(memory)
    code_fingerprint("pkg.stage", root=package(stage="N = 2\n"))
    save_summaries(memory)
    assert len(json.loads(memory.read_text())) == 2, "the package's own file and the new stage"


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", '{"a": 3}', '{"a": [1]}', '{"a": ["x", 3, []]}'])
def test_a_broken_memory_is_no_loss_and_is_made_whole(fresh, package, tmp_path, text):
    memory = tmp_path / "m.json"
    memory.write_text(text)
    load_summaries(memory)
    code_fingerprint("pkg.stage", root=package(stage="N = 1\n"))
    save_summaries(memory)
    assert json.loads(memory.read_text()).keys() == provenance._USED


def test_a_memory_that_cannot_be_written_is_no_loss(fresh, package):
    from pathlib import Path

    code_fingerprint("pkg.stage", root=package(stage="N = 1\n"))
    save_summaries(Path("/proc/self/none/m.json"))


def test_the_memory_of_another_form_is_not_taken(fresh, package, tmp_path, monkeypatch):
    root, memory = package(stage="N = 1\n"), tmp_path / "m.json"
    first = code_fingerprint("pkg.stage", root=root)
    save_summaries(memory)
    fresh()
    monkeypatch.setattr(provenance, "REMEMBERED", provenance.REMEMBERED + 1)
    spoilt = {key: ["wrong", [], []] for key in json.loads(memory.read_text())}
    memory.write_text(json.dumps(spoilt))
    load_summaries(memory)
    assert code_fingerprint("pkg.stage", root=root) == first


def test_what_a_variant_from_outside_stands_in_is_its_code(fresh, tmp_path, monkeypatch):
    """Python runs `mine/__init__.py` before `mine.variant`, also if that imports nothing."""
    (tmp_path / "mine" / "open").mkdir(parents=True)
    (tmp_path / "mine" / "__init__.py").write_text("SCALE = 1\n")
    (tmp_path / "mine" / "variant.py").write_text("x = 1\n")
    (tmp_path / "mine" / "open" / "variant.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert reachable("mine.variant") == ("mine", "mine.variant")
    assert reachable("mine.open.variant") == ("mine", "mine.open.variant"), "a folder without __init__.py is no code"
    before = code_fingerprint("mine.variant")
    (tmp_path / "mine" / "__init__.py").write_text("SCALE = 2\n")
    provenance._parsed.cache_clear()
    assert code_fingerprint("mine.variant") != before


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from . import near", "near"),
        ("from .near import x", "near"),
        ("from .deep.far import x", "deep.far"),
        ("import pkg.deep.far as f", "deep.far"),
        ("try:\n    import pkg.near\nexcept ImportError:\n    pass\n", "near"),
        ("if False:\n    from pkg import near\n", "near"),
        ("class A:\n    async def f(self):\n        from pkg.deep import far\n", "deep.far"),
        ("from pkg import *\nfrom pkg.deep import *", "deep"),
    ],
)
def test_every_form_of_import_is_followed(fresh, package, source, found):
    root = package(stage=source, near="x = 1", deep__dot____init__="", deep__dot__far="x = 1")
    assert f"pkg.{found}" in reachable("pkg.stage", root=root)


def test_relative_imports_climb_as_far_as_they_say(fresh, package):
    root = package(
        deep__dot____init__="from .. import near\n",
        deep__dot__far="from ..other import x\nfrom . import beside\n",
        deep__dot__beside="",
        near="",
        other="",
    )
    assert reachable("pkg.deep.far", root=root) == (
        "pkg", "pkg.deep", "pkg.deep.beside", "pkg.deep.far", "pkg.near", "pkg.other",
    )  # fmt: skip


def test_modules_that_import_each_other_are_followed_once(fresh, package):
    root = package(a="import pkg.b\n", b="import pkg.a\n")
    assert reachable("pkg.a", root=root) == ("pkg", "pkg.a", "pkg.b")
    assert reachable("pkg.b", "pkg.a", root=root) == ("pkg", "pkg.a", "pkg.b")


def test_the_order_of_entries_is_no_part_of_the_code(fresh, package):
    root = package(a="A = 1\n", b="B = 2\n")
    assert code_fingerprint("pkg.a", "pkg.b", root=root) == code_fingerprint("pkg.b", "pkg.a", root=root)
    assert code_fingerprint("pkg.a", root=root) != code_fingerprint("pkg.b", root=root)


@pytest.mark.parametrize(
    ("one", "two", "equal"),
    [
        ('async def f():\n    """Doc."""\n', "async def f():\n    pass\n", False),
        ('async def f():\n    """Doc."""\n    return 1\n', "async def f():\n    return 1\n", True),
        (
            'class A:\n    class B:\n        """Doc."""\n        x = 1\n',
            "class A:\n    class B:\n        x = 1\n",
            True,
        ),
        ('def f():\n    x = """text"""\n', 'def f():\n    x = """other"""\n', False),
        ('def f():\n    return 1\n    """late"""\n', "def f():\n    return 1\n", False),
        ("x = 1\r\ny = 2\r\n", "x = 1\ny = 2\n", True),
        ("x = 1.0\n", "x = 1\n", False),
        ("x = 'a' 'b'\n", "x = 'ab'\n", True),
        ("x = (1)\n", "x = 1\n", True),
        ("def f(a, b=1): pass\n", "def f(a, *, b=1): pass\n", False),
        ("@cache\ndef f(): pass\n", "def f(): pass\n", False),
    ],
)
def test_what_counts_as_a_change_of_code(fresh, one, two, equal):
    digests = {provenance._summary(text.encode(), "pkg")[0] for text in (one, two)}
    assert (len(digests) == 1) == equal


def test_an_empty_module_has_a_digest_and_its_position_does_not_count():
    assert canonical(ast.parse("")) == "Module()"
    assert canonical(ast.parse("\n\n\nx")) == canonical(ast.parse("x"))


def test_a_copy_of_the_code_says_what_it_was_copied_from(tmp_path):
    inside = tmp_path / "copy" / "src" / "pkg"
    inside.mkdir(parents=True)
    (tmp_path / "copy" / ".git-state").write_text('{"commit": "c0ffee", "dirty": false}')
    assert git_state(inside) == {"commit": "c0ffee", "dirty": False}
    (tmp_path / "copy" / "src" / ".git").mkdir()  # a checkout within it speaks for itself
    assert git_state(inside)["commit"] != "c0ffee"
