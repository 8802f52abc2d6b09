"""A small training run as the workflow would start it: a token store, a slice, manifests, and the stage's command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from faults import harness
from faults.harness import Child
from safetensors.torch import load_file

from iha.artifacts.manifest import Manifest, file_entry, read_manifest, write_manifest
from iha.config.schema import EngineConfig, ModelConfig, Recipe, Variant
from iha.data.loader import Batch
from iha.planning.slices import TrainSlice
from iha.tracking import read_metrics
from iha.train.distributed import World
from iha.train.loop import Trainer
from iha.train.loss import ModelWithLoss
from iha.train.optimizer import AdamW

VOCAB = 64
KINDS = ("global", "global_local", "talking_heads", "diff", "iha")
MODEL = ModelConfig(hidden_dim=32, n_layers=5, n_heads=4, ffn_dim=48)
ENGINE = EngineConfig(precision="fp32", compile=False, activation_checkpointing=False, loss_chunk=64)


def recipe(**changes: Any) -> Recipe:
    base = {"seq_len": 64, "steps": 16, "global_batch": 4, "micro_batch": 4, "lr": 1e-2, "min_lr": 1e-4}
    return Recipe(**{**base, "warmup_steps": min(4, changes.get("steps", 16)), "checkpoint_every": 5, **changes})


def variant(kind: str) -> Variant:
    return Variant.model_validate({"name": kind, "attention": {"kind": kind}})


def train_slice(kind: str = "global", stage: str = "pretrain", **changes: Any) -> TrainSlice:
    chosen = changes.pop("recipe", None) or recipe()
    fields = {"stage": stage, "variant": variant(kind), "seed": 1, "model": MODEL, "vocab_size": VOCAB}
    fields |= {"pretrain_len": 64, "steps": chosen.steps, "recipe": chosen, "engine": ENGINE}
    return TrainSlice(**{**fields, **changes})


def text(tokens: int, seed: int = 0) -> np.ndarray:
    """A learnable stream: each id is mostly the last one plus a fixed stride."""
    rng = np.random.default_rng(seed)
    jumps = np.where(rng.random(tokens) < 0.8, 7, rng.integers(0, VOCAB, tokens))
    ids = (np.cumsum(jumps) % (VOCAB - 2)) + 2
    ids[::97] = 1
    return ids.astype("<u2")


def plain_store(state: Path, tokens: int = 4000, seed: int = 0) -> Manifest:
    """A token store as the tokenise stage would leave it."""
    path = state / f"tokens{seed}.ds"
    path.parent.mkdir(parents=True, exist_ok=True)
    text(tokens, seed).tofile(path)
    shards = [{"file": "shard", "tokens": tokens}]
    facts = {"shards": shards, "dtype": "<u2", "max_id": VOCAB - 1, "vocab_size": VOCAB, "seq_len": 0, "eos": 1}
    return Manifest(stage="tokenise", slice={}, code="x", files={"shard": file_entry(path, state)}, metadata=facts)


def packed_store(state: Path, rows: int = 40, seq_len: int = 64) -> Manifest:
    """A packed store: documents of 20 and 44 tokens in each row, loss on the second half of each."""
    path = state / "packed.ds"
    path.parent.mkdir(parents=True, exist_ok=True)
    text(rows * seq_len, 3).tofile(path)
    doc = np.repeat([0, 1], [20, seq_len - 20]).astype("<u2")
    mask = np.concatenate([np.arange(20) >= 10, np.arange(seq_len - 20) >= 22]).astype(np.uint8)
    np.tile(doc, rows).tofile(path.with_suffix(".doc"))
    np.tile(mask, rows).tofile(path.with_suffix(".mask"))
    files = {name: file_entry(path.with_suffix(f".{name}"), state) for name in ("ds", "doc", "mask")}
    shards = [{"file": "ds", "tokens": rows * seq_len}]
    facts = {"shards": shards, "dtype": "<u2", "max_id": VOCAB - 1, "vocab_size": VOCAB, "seq_len": seq_len, "eos": 1}
    return Manifest(stage="tokenise", slice={}, code="x", files=files, metadata=facts)


class Lab(harness.Lab):
    """One state directory and the training stages in it, each with what is given as its inputs."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, logs=root)
        self.inputs: dict[str, Path] = {}
        self.give("store", plain_store(self.state))

    def give(self, name: str, manifest: Manifest) -> None:
        """Make `manifest` the input `name` of later starts."""
        self.inputs[name] = self.manifest(name)
        write_manifest(self.inputs[name], manifest)

    def job(self, part: TrainSlice) -> harness.Job:
        """The job of a slice."""
        name, folder = part.variant.name, f"runs/{part.variant.name}/seed{part.seed}/{part.stage}"
        return harness.Job(f"{name}-{part.stage}", part.stage, part, {n: n for n in self.inputs}, folder)

    def folder(self, part: TrainSlice) -> Path:
        """Run directory of a slice."""
        return super().folder(self.job(part))

    def output(self, part: TrainSlice | harness.Job) -> Path:
        """Manifest of a slice."""
        return super().output(part if isinstance(part, harness.Job) else self.job(part))

    def start(self, part: TrainSlice, code: str = "c1", prepare: Any = None, **env: str) -> Child:
        """Start a stage in a process of its own."""
        return super().start(self.job(part), code, prepare, **env)

    def made(self, part: TrainSlice) -> Manifest:
        """The stage's manifest."""
        return read_manifest(self.output(part), part.stage)

    def weights(self, part: TrainSlice) -> dict[str, torch.Tensor]:
        """Final weights."""
        return load_file(self.folder(part) / "final" / "model.safetensors")

    def losses(self, part: TrainSlice) -> dict[int, float]:
        """Loss of each step."""
        return dict(read_metrics(self.folder(part) / "metrics.jsonl")["loss"])


class Bigram(torch.nn.Module):
    """The least a training loop can train: next-token logits from the current token alone."""

    def __init__(self, vocab: int = 8, width: int = 4, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.embed = torch.nn.Parameter(torch.randn(vocab, width, generator=generator))
        self.head_weight = torch.nn.Parameter(torch.randn(vocab, width, generator=generator))
        self.blocks = torch.nn.ModuleList()

    def hidden(self, tokens: torch.Tensor, doc_ids: torch.Tensor | None = None) -> torch.Tensor:
        return self.embed[tokens]


class Fixed:
    """Batches from a function of the step."""

    def __init__(self, of: Callable[[int], tuple[torch.Tensor, torch.Tensor]]) -> None:
        self.of = of

    def batch(self, step: int, rank: int = 0, world: int = 1) -> Batch:
        tokens, targets = self.of(step)
        return Batch(tokens.chunk(world)[rank], targets.chunk(world)[rank], None)

    def digest(self, step: int) -> str:
        return str(step)


def random_batches(vocab: int = 8, rows: int = 4, seq_len: int = 6) -> Fixed:
    """Random tokens, a function of the step."""

    def of(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(step)
        ids = torch.randint(0, vocab, (rows, seq_len + 1), generator=generator)
        return ids[:, :-1], ids[:, 1:]

    return Fixed(of)


class Asked:
    """A stop flag that a test sets."""

    reason: str | None = None


class Kept:
    """Metrics in memory."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, float]] = {}

    def __call__(self, step: int, metrics: dict[str, float]) -> None:
        self.rows[step] = metrics


def make_loop(folder: Path, plan: Recipe, batches: Any = None, model: torch.nn.Module | None = None) -> Trainer:
    """A loop over `Bigram` (or `model`) with its checkpoints in `folder`."""
    model = model or Bigram()
    objective = ModelWithLoss(model, ENGINE)
    optimizer = AdamW(dict(model.named_parameters()), set(), plan)
    world = World(0, 1, torch.device("cpu"))
    return Trainer(objective, optimizer, batches or random_batches(), plan, world, checkpoints=folder)


def run_loop(loop: Trainer) -> Kept:
    """Run a loop to its end; returns its metrics."""
    kept = Kept()
    loop.restore()
    assert loop.run([kept])
    return kept
