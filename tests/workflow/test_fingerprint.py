"""A fingerprint changes with the code a stage can reach, and with nothing else."""

import ast
import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from iha.artifacts.fingerprint import ROOT, canonical, code_fingerprint, git_state, reachable
from iha.config.schema import Config, Variant
from iha.errors import UserError
from iha.planning.dag import entry_modules

FILES = {
    "pkg/__init__.py": "",
    "pkg/stage.py": '"""Doc."""\nfrom pkg.lib import used\n\ndef main():\n    from pkg import lazy\n    return used(lazy.N)\n',
    "pkg/lib/__init__.py": "from .inner import used\n",
    "pkg/lib/inner.py": 'import json\nfrom .. import base\n\n\nclass A:\n    """A."""\n\n    x = 1\n\n\ndef used(n):\n    """Use."""\n    return base.M + n  # why\n',
    "pkg/base.py": "M = 1\n",
    "pkg/lazy.py": "N = 2\n",
    "pkg/apart.py": "import pkg.stage\nZ = 1\n",
}


@pytest.fixture
def tree(tmp_path):
    """Writes the package anew with one file replaced; every version lies in its own folder."""
    count = iter(range(100))

    def _tree(path: str | None = None, old: str = "", new: str = "") -> Path:
        root = tmp_path / str(next(count))
        for name, text in FILES.items():
            file = root / name
            file.parent.mkdir(parents=True, exist_ok=True)
            assert name != path or old in text
            file.write_text(text.replace(old, new) if name == path else text)
        return root / "pkg"

    return _tree


@pytest.fixture
def package(tmp_path):
    """Writes a package `pkg`; its folder."""

    def _package(**files: str):
        root = tmp_path / "pkg"
        for name, text in {"__init__": "", **files}.items():
            path = root.joinpath(*name.split("__dot__")).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
        return root

    return _package


PLAIN = """import os
def f(a, *, b=None):
    return f"{a!r} {a:>{b}}" if b else [*a, 1.5]
class C: pass
"""


def test_the_digest_of_a_module_does_not_depend_on_the_version_of_python():
    """Computed with 3.11; `ast.dump` gives another text on 3.12 and on 3.13."""
    assert hashlib.sha256(canonical(ast.parse(PLAIN)).encode()).hexdigest()[:16] == "c71fd2c41d11a43f"


@pytest.mark.parametrize("file", ["paper.yaml", "claims.yaml"])
def test_a_file_that_a_module_names_counts_as_its_code(tmp_path, file):
    whole = tmp_path / "iha"
    shutil.copytree(ROOT, whole, ignore=shutil.ignore_patterns("__pycache__"))
    entries = entry_modules("report")
    before = code_fingerprint(*entries, root=whole)
    (whole / "report" / file).write_text("changed")
    assert code_fingerprint(*entries, root=whole) != before


def test_what_stands_beside_a_variant_from_outside_is_its_code(tmp_path, monkeypatch):
    (tmp_path / "mine_variant.py").write_text("from mine_kernel import mix\n")
    (tmp_path / "mine_kernel.py").write_text("import torch\ndef mix(x): return x\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert {"mine_variant", "mine_kernel"} <= set(reachable("mine_variant"))
    assert "torch" not in reachable("mine_variant")
    before = code_fingerprint("mine_variant")
    (tmp_path / "mine_kernel.py").write_text("import torch\ndef mix(x): return 2 * x\n")
    assert code_fingerprint("mine_variant") != before


def test_the_closure_follows_relative_and_function_local_imports(tree):
    inside = reachable("pkg.stage", root=tree())
    assert inside == ("pkg", "pkg.base", "pkg.lazy", "pkg.lib", "pkg.lib.inner", "pkg.stage")


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("pkg/stage.py", '"""Doc."""', '"""Another."""'),
        ("pkg/stage.py", '"""Doc."""\n', ""),
        ("pkg/lib/inner.py", '    """Use."""\n', ""),
        ("pkg/lib/inner.py", '"""A."""', '"""Class A."""'),
        ("pkg/lib/inner.py", "  # why", ""),
        ("pkg/lib/inner.py", "base.M + n", "(\n        base.M\n        + n\n    )"),
        ("pkg/base.py", "M = 1", "# much\n\nM   =   1"),
        ("pkg/apart.py", "Z = 1", "Z = 2"),
    ],
)
def test_an_edit_that_cannot_change_the_result_keeps_the_fingerprint(tree, path, old, new):
    assert code_fingerprint("pkg.stage", root=tree(path, old, new)) == code_fingerprint("pkg.stage", root=tree())


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("pkg/stage.py", "used(lazy.N)", "used(lazy.N + 1)"),
        ("pkg/lib/inner.py", "x = 1", "x = 2"),
        ("pkg/lib/inner.py", "base.M + n", "base.M - n"),
        ("pkg/base.py", "M = 1", "M = '1'"),
        ("pkg/lazy.py", "N = 2", "N = 3"),
        ("pkg/lib/__init__.py", "used\n", "used\nflag = 1\n"),
    ],
)
def test_an_edit_of_reachable_code_changes_the_fingerprint(tree, path, old, new):
    assert code_fingerprint("pkg.stage", root=tree(path, old, new)) != code_fingerprint("pkg.stage", root=tree())


def test_what_cannot_change_a_number_is_no_code_of_a_training():
    """Else a changed default price in `plan`, or another log line, would train everything again."""
    code = reachable(*entry_modules("pretrain", Config().variants))
    assert {"iha.train.loop", "iha.model.attention.iha", "iha.data.order"} <= set(code)
    neutral = ("iha.config", "iha.tracking", "iha.errors", "iha.planning.slices", "iha.artifacts.progress")
    assert not [name for name in code if name.startswith(neutral)]


def test_an_entry_that_does_not_exist_is_an_error(tree):
    with pytest.raises(ModuleNotFoundError, match=r"pkg\.nothing"):
        code_fingerprint("pkg.nothing", root=tree())


def test_a_variant_outside_the_package_is_followed_into_its_own_package(tree, tmp_path, monkeypatch):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "__init__.py").write_text("")
    (mine / "variant.py").write_text("import json\nfrom mine.helper import k\nfrom pkg.base import M\n")
    (mine / "helper.py").write_text("k = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert reachable("mine.variant", root=tree()) == ("mine", "mine.helper", "mine.variant", "pkg", "pkg.base")


def variants(*kinds: str) -> tuple[Variant, ...]:
    return tuple(Config().variant(kind) for kind in kinds)


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """Whether a line of code added to a file of this package changes a stage's fingerprint."""
    whole = tmp_path_factory.mktemp("copy") / "iha"
    shutil.copytree(ROOT, whole, ignore=shutil.ignore_patterns("__pycache__"))

    def _changed(edited: str, stage: str, *kinds: str) -> bool:
        root = tmp_path_factory.mktemp("edited") / "iha"
        shutil.copytree(whole, root)
        file = root / edited
        file.write_text(file.read_text() + "\nADDED_LINE = 1\n")
        entries = entry_modules(stage, variants(*kinds))
        return code_fingerprint(*entries, root=root) != code_fingerprint(*entries, root=whole)

    return _changed


def test_pretraining_depends_on_the_attention_it_runs_and_on_no_other(changed):
    assert changed("model/attention/iha.py", "pretrain", "iha")
    assert not changed("model/attention/iha.py", "pretrain", "diff")
    assert changed("model/attention/diff.py", "pretrain", "diff")
    assert not changed("model/attention/diff.py", "pretrain", "iha")
    assert not changed("variants/iha.py", "pretrain", "diff")
    assert changed("model/attention/masks.py", "pretrain", "diff")
    assert changed("train/loop.py", "pretrain", "diff")


def test_stages_do_not_share_what_they_do_not_use(changed):
    assert not changed("train/loop.py", "tokenise")
    assert not changed("report/page.py", "pretrain", "global")
    assert not changed("cli.py", "flops")
    assert not changed("config/schema.py", "flops")
    assert not changed("tracking/__init__.py", "pretrain", "global")
    assert changed("planning/flops.py", "flops")
    assert not changed("planning/flops.py", "tokenise")


def test_the_ledger_needs_no_torch_module():
    assert not any(m.startswith("iha.model.attention") for m in entry_modules("flops", Config().variants, torch=False))


def test_what_a_variant_from_outside_is_in_is_its_code(tmp_path, monkeypatch):
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
def test_every_form_of_import_is_followed(package, source, found):
    root = package(stage=source, near="x = 1", deep__dot____init__="", deep__dot__far="x = 1")
    assert f"pkg.{found}" in reachable("pkg.stage", root=root)


def test_relative_imports_climb_as_far_as_they_say(package):
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


def test_modules_that_import_each_other_are_followed_once(package):
    root = package(a="import pkg.b\n", b="import pkg.a\n")
    assert reachable("pkg.a", root=root) == ("pkg", "pkg.a", "pkg.b")
    assert reachable("pkg.b", "pkg.a", root=root) == ("pkg", "pkg.a", "pkg.b")


def test_the_order_of_entries_is_no_part_of_the_code(package):
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
def test_what_counts_as_a_change_of_code(package, one, two, equal):
    digests = {code_fingerprint("pkg.m", root=package(m=text)) for text in (one, two)}
    assert (len(digests) == 1) == equal


def test_an_empty_module_has_a_digest_and_its_position_does_not_count():
    assert canonical(ast.parse("")) == "Module()"
    assert canonical(ast.parse("\n\n\nx")) == canonical(ast.parse("x"))


def test_a_copy_of_the_code_records_what_it_was_copied_from(tmp_path):
    inside = tmp_path / "copy" / "src" / "pkg"
    inside.mkdir(parents=True)
    (tmp_path / "copy" / ".git-state").write_text('{"commit": "c0ffee", "dirty": false}')
    assert git_state(inside) == {"commit": "c0ffee", "dirty": False}
    (tmp_path / "copy" / "src" / ".git").mkdir()  # a checkout within it comes first
    assert git_state(inside)["commit"] != "c0ffee"


def test_git_state_outside_a_checkout_is_unknown(tmp_path):
    assert git_state(tmp_path) == {"commit": "unknown", "dirty": True}


def test_git_state_of_a_checkout(tmp_path):
    def git(*args: str) -> None:
        who = ["-c", "user.name=t", "-c", "user.email=t@t"]
        subprocess.run(["git", *who, *args], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "x")
    clean = git_state(tmp_path)
    assert len(str(clean["commit"])) == 40
    assert clean["dirty"] is False
    (tmp_path / "new").write_text("x")
    assert git_state(tmp_path) == {**clean, "dirty": True}


@pytest.mark.parametrize("text", ["x = 1\ndef f(:\n", "x = 1\n\x00", "x = 1\n\xff = ("])
def test_a_module_that_is_not_python_is_named_with_its_line(package, text):
    root = package(a="import pkg.b\n", b=text)
    with pytest.raises(UserError) as caught:
        code_fingerprint("pkg.a", root=root)
    assert f"{root / 'b.py'}:" in str(caught.value)
