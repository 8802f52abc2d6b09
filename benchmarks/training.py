"""Training benchmarks: whole steps against transformers' Llama and litgpt, the loss, checkpoints, the loader, resuming.

Ratios only are comparable between machines: sides run interleaved, in CPU time of one thread, and the ratio is of
medians. Prints a card, then one JSON line. Run: ``OMP_NUM_THREADS=1 python benchmarks/training.py [--repeats 7]``;
``--only steps,loss`` runs some parts. litgpt is compared where it is installed; it cannot be an extra of this project,
since it pins huggingface-hub below what transformers 5 needs (``pip install --no-deps litgpt``).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from timing import Run, interleaved
from torch import nn

from iha.artifacts.manifest import Manifest, file_entry
from iha.config.schema import Budget, EngineConfig, ModelConfig, Recipe, Variant
from iha.data.loader import Batch, Batches
from iha.data.store import TokenStore
from iha.model.transformer import build_model
from iha.planning.flops import PricedModel
from iha.train import checkpoint
from iha.train.distributed import World
from iha.train.loop import Trainer, prepare, state_tensors
from iha.train.loss import token_loss_sum
from iha.train.optimizer import AdamW

MODEL = ModelConfig(hidden_dim=256, n_layers=6, n_heads=4, ffn_dim=704, tie_embeddings=False)
VOCAB, BATCH, LENGTH = 8192, 4, 256
#: GFLOP/s of one core's fp32 matrix product on a quiet day, the peak that shares are of.
PEAK = 150.0
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


def spec(attention: dict[str, object]) -> Variant:
    """A variant of that attention."""
    return Variant.model_validate({"name": "x", "attention": attention})


def our_loop(attention: dict[str, object], compiled: bool = False, folder: Path = Path()) -> Trainer:
    """The trainer's loop on random tokens."""
    model = build_model(MODEL, spec(attention).attention, VOCAB, LENGTH, seed=1)
    optimizer = AdamW(dict(model.named_parameters()), model.no_decay_names(), RECIPE)
    objective = prepare(model, ENGINE.model_copy(update={"compile": compiled}), WORLD)
    return Trainer(objective, optimizer, Random(), RECIPE, WORLD, checkpoints=folder)


def our_step(attention: dict[str, object], compiled: bool = False) -> Run:
    """One step of the loop: batch, forward, backward, clip, update, counters."""
    loop = our_loop(attention, compiled)
    return lambda: loop.train_step(loop.batches.batch(loop.counters.step), BATCH * LENGTH)


def peer_step(model: nn.Module, logits: Callable[[torch.Tensor], torch.Tensor]) -> Run:
    """The same step with a peer's model, torch's loss, clipping and AdamW."""
    data, count = Random(), iter(range(10**6))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RECIPE.lr, betas=RECIPE.betas, fused=True)

    def run() -> None:
        batch = data.batch(next(count))
        F.cross_entropy(logits(batch.tokens).flatten(0, 1), batch.targets.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return run


def llama(compiled: bool) -> Run:
    """transformers' Llama of our shape."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=MODEL.hidden_dim,
            intermediate_size=MODEL.ffn_dim,
            num_hidden_layers=MODEL.n_layers,
            num_attention_heads=MODEL.n_heads,
            tie_word_embeddings=False,
            attn_implementation="sdpa",
        )
    )
    if compiled:
        model.compile()
    return peer_step(model, lambda tokens: model(tokens, use_cache=False).logits)


def litgpt(compiled: bool) -> Run:
    """litgpt's decoder of our shape."""
    from litgpt.config import Config
    from litgpt.model import GPT

    model = GPT(
        Config(
            block_size=LENGTH,
            padded_vocab_size=VOCAB,
            vocab_size=VOCAB,
            n_layer=MODEL.n_layers,
            n_head=MODEL.n_heads,
            n_embd=MODEL.hidden_dim,
            intermediate_size=MODEL.ffn_dim,
            rotary_percentage=1.0,
            parallel_residual=False,
            bias=False,
            norm_class_name="RMSNorm",
            mlp_class_name="LLaMAMLP",
        )
    )
    model.apply(model._init_weights)
    if compiled:
        model.compile()
    return peer_step(model, model)


def peers(compiled: bool) -> dict[str, Run]:
    """The peers that are installed."""
    found = {"llama": llama(compiled)}
    return found | ({"litgpt": litgpt(compiled)} if importlib.util.find_spec("litgpt") else {})


def steps(repeats: int) -> dict[str, float]:
    """Our eager step over each peer's, its share of the peak, then each variant over our own multi-head attention."""
    times = interleaved({**peers(False), **{name: our_step(a) for name, a in VARIANTS.items()}}, repeats)
    priced = PricedModel(MODEL, spec(VARIANTS["global"]).attention, VOCAB, LENGTH)
    work = priced.step_flops(Budget(seq_len=LENGTH, steps=1, global_batch=BATCH))
    rows = {"step_ms": times["global"], "step_gflops": work / times["global"] / 1e6}
    rows["step_peak_share"] = rows["step_gflops"] / PEAK
    rows |= {f"step_vs_{name}": times[name] / times["global"] for name in times if name not in VARIANTS}
    return rows | {f"{name}_vs_global": times["global"] / times[name] for name in VARIANTS if name != "global"}


def compiled(repeats: int) -> dict[str, float]:
    """The compiled step over each peer's compiled one."""
    sides = {**peers(True), "ours": our_step(VARIANTS["global"], True), "iha": our_step(VARIANTS["iha"], True)}
    times = interleaved(sides, repeats)
    rows = {f"compiled_vs_{name}": times[name] / times["ours"] for name in times if name not in ("ours", "iha")}
    return {"compiled_ms": times["ours"], **rows, "compiled_iha_vs_global": times["ours"] / times["iha"]}


def loss(repeats: int, tokens: int = 512, vocab: int = 128_256, width: int = 256) -> dict[str, float]:
    """The chunked loss against the plain one at Llama 3's vocabulary: speed, and memory of the logits held."""
    hidden, weight = torch.randn(tokens, width).requires_grad_(), torch.randn(vocab, width).mul_(0.02).requires_grad_()
    targets = torch.randint(vocab, (tokens,))

    def plain() -> None:
        torch.autograd.grad(F.cross_entropy(hidden @ weight.T, targets, reduction="sum"), (hidden, weight))

    def ours() -> None:
        torch.autograd.grad(token_loss_sum(hidden, weight, targets, 256), (hidden, weight))

    times = interleaved({"plain": plain, "ours": ours}, max(2, repeats // 2))
    rows = {"loss_speed": times["plain"] / times["ours"]}
    for length in (1024, 4096):
        peaks = {side: _alone(_LOSS_MEMORY, side, str(length)) for side in ("plain", "ours")}
        rows[f"loss_memory_{length}"] = peaks["plain"] / peaks["ours"]
    return rows


_LOSS_MEMORY = """
import sys, torch
from pathlib import Path
from torch.nn import functional as F
from iha.train.loss import token_loss_sum
tokens = int(sys.argv[2])
h, w = torch.randn(tokens, 256).requires_grad_(), torch.randn(128256, 256).mul_(0.02).requires_grad_()
t = torch.randint(128256, (tokens,))
peak = lambda: next(int(x.split()[1]) for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x)
before = peak()
loss = F.cross_entropy(h @ w.T, t, reduction="sum") if sys.argv[1] == "plain" else token_loss_sum(h, w, t, 256)
loss.backward()
print(peak() - before)
"""


def _alone(code: str, *arguments: str) -> float:
    """The number that a piece of code prints in a process of its own."""
    command = [sys.executable, "-c", code, *arguments]
    out = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent).stdout
    return float(out.split()[-1])


def saving(repeats: int, size_mb: int = 1000) -> dict[str, float]:
    """Save (synced, hashed) and verified load of one checkpoint over DCP's plain save and load, wall time."""
    import torch.distributed.checkpoint as dcp

    tensors = {f"t{i}": torch.randn(size_mb // 10, 250_000) for i in range(10)}
    taken: dict[str, list[float]] = {"ours": [], "dcp": []}

    def ours(folder: Path) -> None:
        checkpoint.save(folder, 1, tensors, {}, WORLD)
        checkpoint.load_newest(folder, tensors, WORLD)

    def plain(folder: Path) -> None:
        dcp.save(tensors, checkpoint_id=folder, no_dist=True)
        dcp.load(tensors, checkpoint_id=folder, no_dist=True)

    for _ in range(max(3, repeats // 2)):
        for name, run in (("ours", ours), ("dcp", plain)):
            with tempfile.TemporaryDirectory() as folder:
                start = time.perf_counter()
                run(Path(folder))
                taken[name].append(time.perf_counter() - start)
    best = {name: min(seconds) for name, seconds in taken.items()}
    return {"checkpoint_mb": size_mb, "checkpoint_s": best["ours"], "checkpoint_vs_dcp": best["ours"] / best["dcp"]}


def loader(repeats: int) -> dict[str, float]:
    """Share of a step that goes into reading its batch and its digest from a store."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.ds"
        np.random.default_rng(0).integers(0, VOCAB, 4_000_000, dtype=np.uint16).tofile(path)
        facts = {"shards": [{"file": "shard", "tokens": 4_000_000}], "dtype": "<u2", "max_id": VOCAB - 1,
                 "vocab_size": VOCAB, "seq_len": 0, "eos": 1}  # fmt: skip
        files = {"shard": file_entry(path, path.parent)}
        store = TokenStore.open(
            Manifest(stage="tokenise", slice={}, code="x", files=files, metadata=facts), path.parent
        )
        batches, count = Batches(store, LENGTH, BATCH, 1), iter(range(10**6))

        def read() -> None:
            step = next(count)
            batches.batch(step)
            batches.digest(step)

        times = interleaved({"read": read, "step": our_step(VARIANTS["global"])}, repeats)
    return {"loader_share": times["read"] / times["step"]}


_RESUME = """
import sys, time
from pathlib import Path
import training as b
start = time.perf_counter()
loop = b.our_loop(b.VARIANTS["iha"], folder=Path(sys.argv[1]))
assert loop.restore()
loop.train_step(loop.batches.batch(loop.counters.step), b.BATCH * b.LENGTH)
print(time.perf_counter() - start)
"""


def start_up(repeats: int) -> dict[str, float]:
    """CPU seconds of importing the stage and torch; seconds from there to the first step after a resume."""
    rows = {}
    for name, module in (("torch", "torch"), ("stage", "iha.stages.pretrain")):
        code = f"import time, {module}; print(time.process_time())"
        rows[f"import_{name}_s"] = min(_alone(code) for _ in range(3))
    with tempfile.TemporaryDirectory() as folder:
        loop = our_loop(VARIANTS["iha"], folder=Path(folder))
        checkpoint.save(Path(folder), 1, state_tensors(loop.model.model, loop.optimizer), _facts(loop), WORLD)
        rows["resume_s"] = min(_alone(_RESUME, folder) for _ in range(3))
    return rows


def _facts(loop: Trainer) -> dict[str, object]:
    from iha.train.loop import state_metadata

    return state_metadata(loop.counters, loop.guard)


PARTS = {f.__name__: f for f in (steps, compiled, loss, saving, loader, start_up)}


def main() -> None:
    """Run the parts and print what they found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts: {', '.join(PARTS)}")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows: dict[str, float] = {}
    for name in args.only.split(","):
        rows |= PARTS[name](args.repeats)
    print(f"training, 1 thread, {MODEL.n_layers} layers, D {MODEL.hidden_dim}, {BATCH} x {LENGTH} tokens, V {VOCAB}")
    for name, value in rows.items():
        print(f"  {name:28s} {value:10.4f}")
    print(json.dumps({"benchmark": "training", **{name: round(value, 4) for name, value in rows.items()}}))


if __name__ == "__main__":
    main()
