"""Training benchmarks: a whole step against Hugging Face's Llama, the variants against ours, the loss, a checkpoint.

Ratios only are comparable between machines: sides run interleaved, in CPU time of one thread, and the ratio is of
medians. Prints a card, then one JSON line. Run: ``OMP_NUM_THREADS=1 python benchmarks/training.py [--repeats 5]``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from timing import Run, interleaved

from iha.config import EngineConfig, ModelConfig, Recipe, Variant
from iha.data.loader import Batch
from iha.flops import PricedModel
from iha.model import build_model
from iha.slices import Budget
from iha.train import checkpoint
from iha.train.distributed import World
from iha.train.engine import prepare
from iha.train.loop import Loop, Plan
from iha.train.loss import token_loss_sum
from iha.train.optim import AdamW
from iha.train.state import tensors_of

MODEL = ModelConfig(hidden_dim=256, n_layers=6, n_heads=4, ffn_dim=704, tie_embeddings=False)
VOCAB, BATCH, LENGTH = 8192, 4, 256
WORLD = World(0, 1, torch.device("cpu"))
ENGINE = EngineConfig(precision="fp32", compile=False, activation_checkpointing=False)
RECIPE = Recipe(
    seq_len=LENGTH, steps=1000, global_batch=BATCH, micro_batch=BATCH, lr=1e-3, min_lr=1e-4, warmup_steps=10
)
VARIANTS = {
    "global": {"kind": "global"},
    "global_local": {"kind": "global_local"},
    "talking_heads": {"kind": "talking_heads"},
    "diff": {"kind": "diff"},
    "iha": {"kind": "iha"},
    "iha_all_global": {"kind": "iha", "period": 1, "global_layers": "iha"},
}


class Random:
    """Random tokens, the same for every side."""

    def batch(self, step: int, rank: int = 0, world: int = 1) -> Batch:
        """One global batch."""
        ids = torch.randint(VOCAB, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(step))
        return Batch(ids[:, :-1], ids[:, 1:], None)

    def digest(self, step: int) -> str:
        """Not the subject here."""
        return str(step)


def our_step(attention: dict[str, object]) -> Run:
    """One step of the loop: batch, forward, backward, clip, update, counters."""
    variant = Variant.model_validate({"name": "x", "attention": attention})
    model = build_model(MODEL, variant.attention, VOCAB, LENGTH, seed=1)
    optimizer = AdamW(dict(model.named_parameters()), model.no_decay_names(), RECIPE)
    loop = Loop(Plan(RECIPE, RECIPE.steps, Path()), prepare(model, ENGINE, WORLD), optimizer, Random(), WORLD)
    return lambda: loop._step(loop._batches.batch(loop.counters.step), BATCH * LENGTH)


def peer_step() -> Run:
    """The same step with transformers' Llama, torch's loss and torch's AdamW."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=MODEL.hidden_dim,
        intermediate_size=MODEL.ffn_dim,
        num_hidden_layers=MODEL.n_layers,
        num_attention_heads=MODEL.n_heads,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )
    model, data, count = LlamaForCausalLM(config), Random(), iter(range(10**6))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RECIPE.lr, betas=RECIPE.betas, fused=True)

    def run() -> None:
        batch = data.batch(next(count))
        logits = model(batch.tokens, use_cache=False).logits
        F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return run


def steps(repeats: int) -> dict[str, float]:
    """Speed of our steps: ours over Llama's, then each variant over our own multi-head attention."""
    times = interleaved({"peer": peer_step(), **{name: our_step(a) for name, a in VARIANTS.items()}}, repeats)
    flops = PricedModel(
        MODEL, Variant.model_validate({"name": "g", "attention": VARIANTS["global"]}).attention, VOCAB, LENGTH
    )
    work = flops.step_flops(Budget(seq_len=LENGTH, steps=1, global_batch=BATCH))
    rows = {"step_ms": times["global"], "step_gflops": work / times["global"] / 1e6}
    rows["step_vs_llama"] = times["peer"] / times["global"]
    return rows | {f"{name}_vs_global": times["global"] / times[name] for name in VARIANTS if name != "global"}


def loss(repeats: int, tokens: int = 512, vocab: int = 128_256, width: int = 256) -> dict[str, float]:
    """The chunked loss against the plain one at Llama 3's vocabulary: speed, and memory of the logits held."""
    hidden, weight = torch.randn(tokens, width).requires_grad_(), torch.randn(vocab, width).mul_(0.02).requires_grad_()
    targets = torch.randint(vocab, (tokens,))

    def plain() -> None:
        torch.autograd.grad(F.cross_entropy(hidden @ weight.T, targets, reduction="sum"), (hidden, weight))

    def ours() -> None:
        torch.autograd.grad(token_loss_sum(hidden, weight, targets, 256), (hidden, weight))

    times = interleaved({"plain": plain, "ours": ours}, repeats)
    peaks = {side: _peak(side) for side in ("plain", "ours")}
    return {"loss_speed": times["plain"] / times["ours"], "loss_memory": peaks["plain"] / peaks["ours"]}


_PEAK = """
import sys, torch
from pathlib import Path
from torch.nn import functional as F
from iha.train.loss import token_loss_sum
h, w = torch.randn(1024, 256).requires_grad_(), torch.randn(128256, 256).mul_(0.02).requires_grad_()
t = torch.randint(128256, (1024,))
peak = lambda: next(int(x.split()[1]) for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x)
before = peak()
loss = F.cross_entropy(h @ w.T, t, reduction="sum") if sys.argv[1] == "plain" else token_loss_sum(h, w, t, 256)
loss.backward()
print(peak() - before)
"""


def _peak(side: str) -> float:
    """Growth of peak memory over one forward and backward pass, in a process of its own (KiB)."""
    out = subprocess.run([sys.executable, "-c", _PEAK, side], capture_output=True, text=True, check=True).stdout
    return float(out)


def saving() -> dict[str, float]:
    """Writing (with sync and hash) and reading (with verification) of one checkpoint, MB per second."""
    model = build_model(
        MODEL, Variant.model_validate({"name": "g", "attention": VARIANTS["iha"]}).attention, VOCAB, LENGTH, seed=1
    )
    tensors = tensors_of(model, AdamW(dict(model.named_parameters()), model.no_decay_names(), RECIPE))
    size = sum(t.numel() * t.element_size() for t in tensors.values()) / 1e6
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        checkpoint.save(Path(folder), 1, tensors, {}, WORLD)
        written = time.perf_counter()
        checkpoint.load_newest(Path(folder), tensors, WORLD)
        read = time.perf_counter()
    return {"checkpoint_mb": size, "save_mb_s": size / (written - start), "load_mb_s": size / (read - written)}


def start_up() -> dict[str, float]:
    """CPU seconds of importing the stage, and of torch alone."""
    rows = {}
    for name, module in (("torch", "torch"), ("stage", "iha.stages.pretrain")):
        code = f"import time, {module}; print(time.process_time())"
        rows[f"import_{name}_s"] = min(
            float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
            for _ in range(3)
        )
    return rows


def main() -> None:
    """Run everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    rows = {**steps(repeats), **loss(max(2, repeats // 2)), **saving(), **start_up()}
    print(f"training, 1 thread, {MODEL.n_layers} layers, D {MODEL.hidden_dim}, {BATCH} x {LENGTH} tokens, V {VOCAB}")
    for name, value in rows.items():
        print(f"  {name:28s} {value:10.2f}")
    print(json.dumps({"benchmark": "training", **{name: round(value, 4) for name, value in rows.items()}}))


if __name__ == "__main__":
    main()
