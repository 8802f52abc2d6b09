"""`docs/howto/variant.md` as its reader follows it: one file, one line, and the rest of the project knows the variant."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from docslab import blocks_of
from reports import whole
from trainlab import MODEL, Lab, recipe, train_slice

from iha import cli
from iha.artifacts.fingerprint import code_fingerprint
from iha.config.load import load_config, parse_config
from iha.config.schema import Variant
from iha.errors import ConfigError
from iha.model.files import load_model
from iha.planning.dag import entry_modules
from iha.report.tables import paper_table
from iha.report.writers import markdown

PAGE = "docs/howto/variant.md"


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """A folder with the page's file and config, from which the package is used."""
    folder = tmp_path_factory.mktemp("reader")
    code, lines = (next(b for b in blocks_of(PAGE) if b.language == kind) for kind in ("python", "yaml"))
    (folder / code.title).write_text(code.text + "\n")
    (folder / "toy.yaml").write_text("experiment: toy\n" + lines.text)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.delitem(sys.modules, "toy_variant", raising=False)
        yield folder


@pytest.fixture(scope="module")
def attention(reader):
    """The variant's spec, read from the page's config."""
    return load_config(reader / "toy.yaml").variant("toy").attention


def test_the_page_shows_all_of_it_in_under_60_lines():
    code, lines = (next(b for b in blocks_of(PAGE) if b.language == kind) for kind in ("python", "yaml"))
    assert len(code.text.splitlines()) + len(lines.text.splitlines()) < 60


def test_it_is_priced(reader, capsys):
    cli.main(["flops", "--config", str(reader / "toy.yaml"), "--json"])
    row = json.loads(capsys.readouterr().out)["variants"]["toy"]
    assert row["attention_ratio"] == 1
    assert row["params"]["attention"] == 26 * (4 * 2560**2 + 20)


def test_it_trains_and_decodes(attention, reader, tmp_path):
    variant = Variant(name="toy", attention=attention)
    lab = Lab(tmp_path)
    part = train_slice(recipe=recipe(steps=8, warmup_steps=1)).model_copy(update={"variant": variant})
    code, text = lab.run(part, PYTHONPATH=str(reader))
    assert code == 0, text
    losses = lab.losses(part)
    assert losses[8] < losses[1]
    model, ids = load_model(lab.state / lab.made(part).metadata["model"]), torch.arange(12)[None]
    with torch.no_grad():
        whole_logits, cache = model(ids), model.new_cache(1)
        steps = torch.cat([model(ids[:, i : i + 1], cache=cache) for i in range(12)], dim=1)
    torch.testing.assert_close(steps, whole_logits, rtol=0, atol=1e-5)
    gain = model.blocks[0].attention.gain
    assert gain.shape == (MODEL.n_heads, 1)
    assert (gain - 0.5).abs().max() > 0, "the new parameter is trained"


def test_it_stands_in_the_tables(tmp_path):
    world = whole(tmp_path, variants=("global", "toy"))
    for name in ("table1", "table2"):
        assert "toy |" in markdown([paper_table(world.results, name)[0]])


def test_its_code_is_a_rerun_key(attention, reader):
    modules = entry_modules("pretrain", (Variant(name="toy", attention=attention),))
    assert "toy_variant" in modules
    assert code_fingerprint(*modules) != code_fingerprint("iha.stages.pretrain")


def test_a_slip_in_its_config_line_is_one_message(reader):
    raw = {"variants": [{"name": "global", "attention": {"kind": "toy_variant:ToySpec", "strat": 0.5}}]}
    with pytest.raises(ConfigError, match="did you mean start"):
        parse_config(raw)


@pytest.mark.parametrize(
    "path",
    [
        "toy_varaint:ToyAttention",
        "toy_variant:ToyAttentoin",
        "iha.model.attention.mah:Mha",
        "toy_variant",
        ".x:Y",
        "__main__:X",
    ],
)
def test_a_slip_in_the_path_of_its_torch_class_is_found_before_anything_runs(attention, path, monkeypatch):
    monkeypatch.setattr(type(attention), "module", path)
    kinds = {"global": "global", "toy": "toy_variant:ToySpec"}
    with pytest.raises(ConfigError) as caught:
        parse_config({"variants": [{"name": name, "attention": {"kind": kind}} for name, kind in kinds.items()]})
    start = "config: variants.toy.attention.kind is 'toy_variant:ToySpec', whose module is"
    assert str(caught.value).startswith(f"{start} {path!r}, which does not exist")
    assert "; allowed: package.module:Class of the torch class, set as `module` in toy_variant" in str(caught.value)


def test_its_torch_class_is_looked_for_without_torch(tmp_path):
    (tmp_path / "light.py").write_text(
        "from typing import ClassVar, Literal\nfrom iha.variants.global_ import GlobalSpec\n"
        "class Light(GlobalSpec):\n"
        "    kind: Literal['light:Light']\n    module: ClassVar[str] = 'iha.model.attention.mha:MultiHeadAttention'\n"
    )
    code = (
        "import sys; from iha.config.load import parse_config\n"
        "kinds = {'global': 'global', 'light': 'light:Light'}\n"
        "parse_config({'variants': [{'name': n, 'attention': {'kind': k}} for n, k in kinds.items()]})\n"
        "assert 'light' in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(tmp_path)}, check=True)
