"""IHA is written once: what is changed in `iha.model.attention.iha` changes the language model and every study."""

import pytest
import torch

from iha.config.schema import ModelConfig
from iha.config.studies import SeparationConfig, SyntheticConfig
from iha.model import transformer
from iha.model.attention import iha as algorithm
from iha.studies.relations.grid import shape_of
from iha.studies.relations.model import build, places
from iha.studies.separation.grid import Point
from iha.studies.separation.learn import draw_task, learner
from iha.studies.theory import filters
from iha.variants.iha import IhaSpec


def outputs():
    """One result of each: language model, relation composition, learned separation, theory."""
    spec = IhaSpec(kind="iha", pseudo_heads=2, period=2)
    sizes = ModelConfig(hidden_dim=16, n_layers=2, n_heads=2, ffn_dim=16)
    model = transformer.build_model(sizes, spec, 11, 16, seed=0)
    tokens = torch.arange(10)[None]
    grid = SyntheticConfig()
    shape = shape_of(grid, grid.task("binary"), grid.model("iha"))
    point = Point("cpm", "iha", 4, 2)
    x, _ = draw_task(SeparationConfig(), point, 0).batch(2, torch.Generator().manual_seed(0))
    with torch.no_grad():
        return {
            "language model": model(tokens),
            "relation composition": build(shape, 0)(torch.ones(1, 36, dtype=torch.long), places(shape, 6)),
            "separation": learner(SeparationConfig(), point, 0)(x),
            "theory": filters.iha_bank(*filters.graph(seed=4), 2, 2),
        }


@pytest.mark.parametrize("step", ["mix_heads", "collapse_heads"])
def test_a_change_of_the_algorithm_changes_the_model_and_every_study(monkeypatch, step):
    before, original = outputs(), getattr(algorithm, step)
    monkeypatch.setattr(algorithm, step, lambda x, weights, *rest: original(x, 0.5 * weights, *rest))
    after = outputs()
    same = {name for name in before if torch.allclose(before[name], after[name])}
    assert same == (set() if step == "mix_heads" else {"separation"}), "the separation applies R to its reader"
