"""A fingerprint changes with the code a stage can reach, and with nothing else."""

import ast
import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from iha.artifacts import fingerprint as provenance
from iha.artifacts.fingerprint import canonical, code_fingerprint, git_state, reachable
from iha.config.schema import Config, Variant
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


PLAIN = """import os
def f(a, *, b=None):
    return f"{a!r} {a:>{b}}" if b else [*a, 1.5]
class C: pass
"""


def test_the_digest_of_a_module_does_not_depend_on_the_version_of_python():
    """Computed with 3.11; `ast.dump` gives another text on 3.12 and on 3.13."""
    assert hashlib.sha256(canonical(ast.parse(PLAIN)).encode()).hexdigest()[:16] == "24458cb52712ccd5"


@pytest.mark.parametrize(
    ("module", "file", "stage"),
    [("synthetic/fused.py", "simplicial.cpp", "synthetic_train"), ("report/paper.py", "paper.yaml", "report"),
     ("report/claims.py", "claims.yaml", "report"), ("report/page.py", "page.html", "report")],
)  # fmt: skip
def test_a_file_that_a_module_names_counts_as_its_code(tmp_path, module, file, stage):
    whole = tmp_path / "iha"
    shutil.copytree(provenance.ROOT, whole, ignore=shutil.ignore_patterns("__pycache__"))
    entries = entry_modules(stage, Config().variants)
    before = code_fingerprint(*entries, root=whole)
    (whole / module).with_name(file).write_text("changed")
    provenance.find_module.cache_clear()
    provenance._parsed.cache_clear()
    assert code_fingerprint(*entries, root=whole) != before


def test_what_stands_beside_a_variant_from_outside_is_its_code(tmp_path, monkeypatch):
    (tmp_path / "mine_variant.py").write_text("from mine_kernel import mix\n")
    (tmp_path / "mine_kernel.py").write_text("import torch\ndef mix(x): return x\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert {"mine_variant", "mine_kernel"} <= set(reachable("mine_variant"))
    assert "torch" not in reachable("mine_variant")
    before = code_fingerprint("mine_variant")
    (tmp_path / "mine_kernel.py").write_text("import torch\ndef mix(x): return 2 * x\n")
    provenance._parsed.cache_clear()
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


def test_no_section_of_the_configuration_is_code_of_a_stage():
    """Else a changed default price in `plan`, which no stage reads, would train everything again."""
    sections = {name for name in reachable("iha.stages.pretrain") if name.startswith("iha.config")}
    assert "iha.config.schema" in sections
    assert sections <= provenance.CONFIGURATION


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
    shutil.copytree(provenance.ROOT, whole, ignore=shutil.ignore_patterns("__pycache__"))

    def _changed(edited: str, stage: str, *kinds: str) -> bool:
        root = tmp_path_factory.mktemp("edited") / "iha"
        shutil.copytree(whole, root)
        file = root / edited
        file.write_text(file.read_text() + "\nADDED_LINE = 1\n")
        entries = entry_modules(stage, variants(*kinds))
        return code_fingerprint(*entries, root=root) != code_fingerprint(*entries, root=whole)

    return _changed


def test_pretraining_depends_on_the_attention_it_runs_and_on_no_other(changed):
    assert changed("attention/iha.py", "pretrain", "iha")
    assert not changed("attention/iha.py", "pretrain", "diff")
    assert changed("attention/diff.py", "pretrain", "diff")
    assert not changed("attention/diff.py", "pretrain", "iha")
    assert not changed("variants/iha.py", "pretrain", "diff")
    assert changed("attention/masks.py", "pretrain", "diff")
    assert changed("train/optimizer.py", "pretrain", "diff")


def test_stages_do_not_share_what_they_do_not_use(changed):
    assert not changed("train/optimizer.py", "tokenise")
    assert not changed("report/page.py", "pretrain", "global")
    assert not changed("cli.py", "flops")
    assert not changed("config.py", "flops")
    assert changed("flops.py", "flops")


def test_the_ledger_needs_no_torch_module():
    assert not any(m.startswith("iha.model.attention") for m in entry_modules("flops", Config().variants, torch=False))


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
