"""The extension to 65,536 tokens at full length: train a step, fill the cache, decode behind it."""

import resource

import pytest
import torch
from trainlab import Lab, plain_store, recipe, train_slice

from iha.artifacts.manifest import read_manifest
from iha.config.schema import ModelConfig
from iha.model.files import load_model

LENGTH, DECODED = 65_536, 4
#: One local IHA layer (window 128 tokens) and one global layer, as the LLLLG schedule has both.
MODEL = ModelConfig(hidden_dim=16, n_layers=2, n_heads=1, ffn_dim=32)
VARIANT = {"name": "iha", "attention": {"kind": "iha", "period": 2}}
LIMIT = 24 * 2**30


def part(stage, **changes):
    """A slice of this model; the loss is cut into pieces as in every run."""
    made = train_slice("iha", stage, model=MODEL, recipe=recipe(**changes), pretrain_len=1024)
    return type(made).model_validate({**made.model_dump(), "variant": VARIANT}, strict=False)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_extension_and_decoding_at_65536_tokens_fit_24_gib(tmp_path):
    lab = Lab(tmp_path)
    base = part("pretrain", steps=1, seq_len=1024, global_batch=1, micro_batch=1, warmup_steps=0)
    long = part("extend", steps=1, seq_len=LENGTH, global_batch=1, micro_batch=1, warmup_steps=0)
    assert lab.run(base)[0] == 0
    lab.give("store", plain_store(lab.state, LENGTH + 100, 7))
    lab.give("parent", read_manifest(lab.output(base), "pretrain"))
    child = lab.start(long)
    assert child.wait(timeout=500) == 0, child.text
    assert lab.made(long).metadata["tokens"] == LENGTH

    model = load_model(lab.state / lab.made(long).metadata["model"])
    tokens = torch.randint(64, (1, LENGTH), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        cache = model.new_cache(1)
        model(tokens[:, :-DECODED], cache=cache, last_only=True)
        copy = cache.select(torch.zeros(1, dtype=torch.long))
        steps = [model(tokens[:, i : i + 1], cache=cache) for i in range(LENGTH - DECODED, LENGTH)]
        chunk = model(tokens[:, -DECODED:], cache=copy)
    assert cache.length == copy.length == LENGTH
    torch.testing.assert_close(torch.cat(steps, 1), chunk, rtol=1e-4, atol=1e-4)
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    assert peak * 1024 < LIMIT
