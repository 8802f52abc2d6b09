"""The one-layer encoder: parameter counts of spec 6.3, IHA against its definition, controls, masks, simplicial forms."""

import pytest
import torch
from torch.nn import functional as F

from iha.config.studies import RelationModel, SyntheticConfig
from iha.studies.relations import model as module
from iha.studies.relations.grid import forward_flops, mean_flops, params, shape_of
from iha.studies.relations.model import ChunkedSimplicial, build, places, simplicial_at_once, simplicial_attention

CONFIG = SyntheticConfig()
TINY = SyntheticConfig(hidden_dim=8, n_heads=2)
MODELS = [m.name for m in CONFIG.models]


def shape(name, task="ternary", config=CONFIG):
    return shape_of(config, config.task(task), config.model(name))


def counted(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "task", "count"),
    [("mha", "ternary", 206_849), ("iha", "ternary", 208_513), ("simplicial", "ternary", 239_233),
     ("mha", "binary", 211_457), ("iha", "binary", 208_513 + 36 * 128)],
)  # fmt: skip
def test_parameter_counts_of_spec_6_3(name, task, count):
    assert params(shape(name, task)) == count
    assert counted(build(shape(name, task), 0)) == count


@pytest.mark.parametrize("name", MODELS)
def test_counted_parameters_are_the_models(name):
    assert counted(build(shape(name), 0)) == params(shape(name))


def test_pseudo_heads_cost_4_h2_p():
    one, eight = params(shape("iha_p1")), params(shape("iha"))
    assert eight - one == 4 * 64 * 7


def randomised(name, config=TINY):
    """A model in float64 with weights far from their start."""
    model = build(shape(name, config=config), 0).double()
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


@pytest.mark.parametrize("name", ["iha", "iha_q1", "iha_p2", "iha_per_head"])
def test_iha_is_the_definition_of_spec_2_1(name):
    model, h, d, n = randomised(name), 2, 4, 5
    layer, x = model.attention, torch.randn(1, n, 8, dtype=torch.float64)
    q, k, v = layer.qkv(x)[0].view(n, 3, h, d).unbind(1)
    alphas = (layer.alpha_q, layer.alpha_k, layer.alpha_v)
    qt, kt, vt = (torch.einsum("phm,nmd->hpnd", a, y) for a, y in zip(alphas, (q, k, v), strict=True))
    pseudo = []
    for head in range(h):
        scores = qt[head].reshape(-1, d) @ kt[head].reshape(-1, d).T / d**0.5
        pseudo.append((scores.softmax(-1) @ vt[head].reshape(-1, d)).view(-1, n, d))
    stacked = torch.stack(pseudo)
    if name == "iha_per_head":
        heads = torch.einsum("ph,hpnd->nhd", layer.collapse, stacked)
    else:
        heads = torch.einsum("gph,hpnd->ngd", layer.collapse, stacked)
    torch.testing.assert_close(layer(x, None), layer.out(heads.reshape(1, n, 8)), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["iha", "iha_q1", "iha_per_head"])
def test_iha_without_noise_starts_as_mha(name):
    torch.manual_seed(0)
    mha, iha = build(shape("mha"), 3), build(shape(name), 3)
    layer = iha.attention
    for alpha in (layer.alpha_q, layer.alpha_k, layer.alpha_v):
        alpha.data.round_()
    queries = layer.alpha_q.shape[0]
    layer.collapse.data = (layer.collapse * queries).round() / queries
    cells, where = torch.randint(2, (3, 36)), places(shape("mha"), 6)
    torch.testing.assert_close(iha(cells, where), mha(cells, where), rtol=1e-4, atol=1e-5)


def test_p1_adds_no_functions():
    iha, h, d = randomised("iha_p1"), 2, 4
    layer, x = iha.attention, torch.randn(2, 6, 8, dtype=torch.float64)
    wq, wk, wv = (
        torch.einsum("phm,mdi->hdi", a, w.view(h, d, 8)).reshape(8, 8)
        for a, w in zip((layer.alpha_q, layer.alpha_k, layer.alpha_v), layer.qkv.weight.chunk(3), strict=True)
    )
    q, k, v = ((x @ w.T).view(2, 6, h, d).transpose(1, 2) for w in (wq, wk, wv))
    heads = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
    mixed = torch.einsum("gph,bnhd->bngd", layer.collapse, heads).reshape(2, 6, 8)
    torch.testing.assert_close(layer(x, None), layer.out(mixed))


@pytest.mark.parametrize("name", ["mha", "iha", "iha_q1", "simplicial"])
def test_padding_changes_nothing(name):
    model = randomised(name)
    where = places(shape(name, config=TINY), 5)
    cells = torch.randint(2, (2, 25))
    padded = F.pad(cells, (0, 11), value=1)
    valid = torch.arange(36).expand(2, -1) < 25
    out = model(padded, F.pad(where, (0, 11)).expand(2, -1), valid)[:, :25]
    torch.testing.assert_close(out, model(cells, where))


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_gets_a_gradient_and_pseudo_heads_differ(name):
    model = build(shape(name, config=TINY), 0)
    model(torch.randint(2, (2, 25)), places(shape(name, config=TINY), 5)).pow(2).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    if name == "iha":
        grad = model.attention.alpha_k.grad
        assert (grad[0] - grad[1]).abs().max() > 0, "pseudo-heads are no tied copies"


def test_positions_count_the_sequence_or_the_cells_of_the_largest_relation():
    cell = shape("mha", config=SyntheticConfig(positions="cell"))
    assert places(shape("mha"), 5).tolist() == list(range(25))
    assert places(cell, 5).view(5, 5)[:, 0].tolist() == [0, 8, 16, 24, 32]
    assert params(cell) == params(shape("mha"))


def test_models_of_one_seed_share_their_common_start():
    mha, iha = build(shape("mha"), 1), build(shape("iha"), 1)
    assert torch.equal(mha.attention.qkv.weight, iha.attention.qkv.weight)
    assert torch.equal(mha.up.weight, iha.up.weight)
    assert not torch.equal(mha.up.weight, build(shape("mha"), 2).up.weight)


def test_decay_is_for_linear_weights_only():
    names = build(shape("iha"), 0).no_decay_names()
    assert {"values", "positions", "attention.alpha_q", "attention.collapse", "head.bias", "norm1.weight"} <= names
    assert not names & {"attention.qkv.weight", "up.weight", "head.weight"}


@pytest.mark.parametrize("name", ["mha", "iha", "iha_q1", "simplicial"])
def test_flops_are_what_torch_counts(name):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    config = SyntheticConfig(hidden_dim=16, n_heads=2)
    model, n = build(shape(name, config=config), 0), 36
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        model(torch.randint(2, (1, n)), places(shape(name, config=config), 6))
    assert counter.get_total_flops() == forward_flops(shape(name, config=config), n)


def test_the_widened_mha_costs_what_iha_costs():
    for task in CONFIG.tasks:
        wide, iha = shape("mha_wide", task.name), shape("iha", task.name)
        assert wide.hidden_dim % 8 == 0
        assert mean_flops(wide, task) == pytest.approx(mean_flops(iha, task), rel=0.03)


def five(batch, heads, length, d, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(batch, heads, length, d, generator=generator, dtype=dtype).requires_grad_() for _ in range(5)]


def test_simplicial_is_the_trilinear_definition():
    q, k1, k2, v1, v2 = five(1, 2, 4, 3)
    scores = torch.einsum("bhid,bhjd,bhkd->bhijk", q, k1, k2) / 3**0.5
    weights = scores.flatten(-2).softmax(-1).view(scores.shape)
    expected = torch.einsum("bhijk,bhjd,bhkd->bhid", weights, v1, v2)
    torch.testing.assert_close(simplicial_at_once(q, k1, k2, v1, v2, None), expected)


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_the_chunked_simplicial_form_is_exact(rows, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_SCORES", rows * 2 * 2 * 49)
    inputs = five(2, 2, 7, 4)
    valid = torch.ones(2, 7, dtype=torch.bool)
    valid[0, 5:] = False
    for mask in (None, valid):
        outs = [f(*inputs, mask) for f in (simplicial_at_once, ChunkedSimplicial.apply)]
        torch.testing.assert_close(outs[1], outs[0], rtol=1e-12, atol=1e-12)
        weight = torch.randn(outs[0].shape, dtype=torch.float64)
        grads = [torch.autograd.grad((out * weight).sum(), inputs) for out in outs]
        for ours, theirs in zip(grads[1], grads[0], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-11)


def test_a_model_that_is_not_known_is_refused():
    with pytest.raises(ValueError, match=r"matches.*nobody"):
        SyntheticConfig(
            models=(
                RelationModel(name="mha", attention="mha"),
                RelationModel(name="x", attention="mha", matches="nobody"),
            )
        )


def test_a_widened_model_has_whole_heads_and_no_width_comes_closer():
    config = SyntheticConfig()
    for task in config.tasks:
        wide = shape_of(config, task, config.model("mha_wide"))
        target = mean_flops(shape_of(config, task, config.model("iha")), task)
        miss = {w: abs(mean_flops(wide.model_copy(update={"hidden_dim": w}), task) - target)
                for w in range(8, 2 * wide.hidden_dim, 8)}  # fmt: skip
        assert min(miss, key=miss.get) == wide.hidden_dim > 128
        assert shape_of(config, task, config.model("iha")).hidden_dim == 128


def test_many_scores_go_in_chunks_and_give_the_same_with_padding(monkeypatch):
    generator = torch.Generator().manual_seed(2)
    inputs = [torch.randn(2, 2, 6, 4, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(5)]
    valid = torch.tensor([[True] * 6, [True] * 2 + [False] * 4])
    whole = simplicial_attention(*inputs, valid)
    monkeypatch.setattr(module, "PLAIN_SCORES", 0)
    monkeypatch.setattr(module, "CHUNK_SCORES", 1)
    parts = simplicial_attention(*inputs, valid)
    assert "Chunked" in type(parts.grad_fn).__name__
    torch.testing.assert_close(parts, whole)
    alone = simplicial_at_once(*(x[1:, :, :2] for x in inputs), None)
    torch.testing.assert_close(whole[1:, :, :2], alone)
