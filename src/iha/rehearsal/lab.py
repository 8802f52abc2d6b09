"""A directory in which stages run as the workflow would start them, and the small experiment of the rehearsal."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from iha.config import EngineConfig, Frozen, ModelConfig, Recipe, SplitConfig, TokenizerConfig, Variant
from iha.configdata import FileSource, TemplateSource
from iha.manifest import Manifest, read_manifest
from iha.rehearsal.process import Child, main_of
from iha.slices import TokeniseSlice, TokenizerSlice, TrainSlice, TrainStage
from iha.tracking import read_metrics
from iha.train.checkpoint import MANIFEST, steps_in

STEPS, EVERY, VOCAB = 12, 4, 320
MODEL = ModelConfig(hidden_dim=32, n_layers=2, n_heads=2, ffn_dim=48)
ENGINE = EngineConfig(precision="fp32", compile=False, activation_checkpointing=False, loss_chunk=64)


@dataclass(frozen=True)
class Job:
    """One stage with its slice.

    `name`: of its manifest; `inputs`: input -> name of the manifest; `folder`: its place in the state directory.
    """

    name: str
    stage: str
    part: Frozen
    inputs: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""


class Lab:
    """Manifests and state below `root`, logs beside it or where `logs` says."""

    def __init__(self, root: Path, logs: Path | None = None) -> None:
        self.root, self.state, self.logs = root, root / "state", logs or root.parent
        self._started = 0

    def output(self, job: Job) -> Path:
        """Manifest of a job."""
        return self.root / f"{job.name}-made.json"

    def folder(self, job: Job) -> Path:
        """What a job keeps in the state directory."""
        return self.state / job.folder

    def argv(self, job: Job, code: str = "c1") -> list[str]:
        """The job's command after `python -m`."""
        head = [f"iha.stages.{job.stage}", "--slice", job.part.model_dump_json(), "--code", code, "--device", "cpu"]
        tail = ["--output", str(self.output(job)), "--state", str(self.state), "--experiment", "rehearsal"]
        return [*head, *tail, "--inputs", *(f"{n}={self.root / f'{m}-made.json'}" for n, m in job.inputs.items())]

    def start(self, job: Job, code: str = "c1", prepare: Callable[[], None] | None = None, **env: str) -> Child:
        """Start a job in a process of its own."""
        self._started += 1
        log = self.logs / f"{self.root.name}-log{self._started}"
        return Child(self.argv(job, code), log, env, prepare)

    def run(self, job: Job, code: str = "c1", **env: str) -> tuple[int, str]:
        """Run a job to its end: exit code and what it printed."""
        child = self.start(job, code, None, **env)
        return child.wait(), child.text

    def start_ranks(self, job: Job, size: int, **env: str) -> list[Child]:
        """Start a training on `size` ranks."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        common = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **env}
        return [self.start(job, "c1", None, **{**common, "RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(size)]

    def ranks(self, job: Job, size: int, **env: str) -> list[tuple[int, str]]:
        """Run a training on `size` ranks to its end."""
        return [(child.wait(), child.text) for child in self.start_ranks(job, size, **env)]

    def made(self, job: Job) -> Manifest:
        """The job's manifest."""
        return read_manifest(self.output(job), job.stage)

    def losses(self, job: Job) -> dict[int, float]:
        """Loss of each step of a training."""
        return dict(read_metrics(self.folder(job) / "metrics.jsonl")["loss"])

    def newest(self, job: Job) -> int | None:
        """Step of the newest complete checkpoint."""
        root = self.folder(job) / "checkpoints"
        whole = [step for step in steps_in(root) if (root / f"step_{step:08d}" / MANIFEST).exists()]
        return whole[-1] if whole else None

    def without(self, job: Job, root: Path, logs: Path | None = None) -> Lab:
        """A copy of this lab below `root` in which `job` was never started."""
        skipped = {self.output(job), self.folder(job)}

        def ignore(folder: str, names: list[str]) -> list[str]:
            return [name for name in names if Path(folder, name) in skipped]

        shutil.copytree(self.root, root, symlinks=True, ignore=ignore)
        return Lab(root, logs)


def experiment(corpus: Path) -> dict[str, Job]:
    """A tokenizer, two stores and the three training stages of one variant, by name, parents first."""
    text = SplitConfig(sources=(FileSource(kind="files", paths=(str(corpus),)),), max_tokens=12_000)
    chats = SplitConfig(sources=(TemplateSource(kind="templates", tasks=("gsm8k",), count=120),))
    named = TokenizerConfig(kind="bpe", vocab_size=VOCAB, train_bytes=40_000)
    stores = {"pretrain": (text, 0), "sft": (chats, 256)}
    jobs = [Job("tokenizer", "tokenizer", TokenizerSlice(tokenizer=named, corpus=text), folder="tokenizer")]
    for split, (data, length) in stores.items():
        part = TokeniseSlice.model_validate(
            {"split": split, "data": data, "shard_tokens": 3000, "seq_len": length}, strict=False
        )
        jobs.append(Job(f"tokenise_{split}", "tokenise", part, {"tokenizer": "tokenizer"}, f"data/{split}"))
    jobs += [_training("pretrain", 64, "pretrain"), _training("extend", 128, "pretrain"), _training("sft", 256, "sft")]
    return {job.name: job for job in jobs}


def _training(stage: TrainStage, length: int, split: str) -> Job:
    recipe = Recipe(
        seq_len=length, steps=STEPS if stage == "pretrain" else 2, global_batch=4, micro_batch=2, lr=1e-2, min_lr=1e-4,
        warmup_steps=2, checkpoint_every=EVERY,
    )  # fmt: skip
    variant = Variant.model_validate({"name": "iha", "attention": {"kind": "iha", "period": 2}})
    part = TrainSlice(
        stage=stage, variant=variant, seed=1, model=MODEL, vocab_size=VOCAB, pretrain_len=64, steps=recipe.steps,
        recipe=recipe, engine=ENGINE,
    )  # fmt: skip
    inputs = {"tokenizer": "tokenizer", "store": f"tokenise_{split}"}
    inputs |= {} if stage == "pretrain" else {"parent": "pretrain"}
    return Job(stage, stage, part, inputs, f"runs/iha/seed1/{stage}")


def prepare(root: Path) -> tuple[Lab, dict[str, Job]]:
    """Run the whole small experiment undisturbed below `root`.

    Raises:
        RuntimeError: a stage fails although nothing disturbs it.
    """
    root.mkdir(parents=True)
    corpus = root.with_name(f"{root.name}-corpus.jsonl")
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts()))
    lab, jobs = Lab(root), experiment(corpus)
    for job in jobs.values():
        main_of(job.stage)
    for job in jobs.values():
        code, text = lab.run(job)
        if code:
            raise RuntimeError(f"the undisturbed {job.name} ended with {code}:\n{text}")
    return lab, jobs


def texts() -> list[str]:
    """Two hundred sentences that a small model can learn something of."""
    words = ("the", "cat", "sat", "on", "a", "mat", "and", "dog", "ran", "to", "its", "end", "with", "seven", "hats")
    return [" ".join(words[(i + j * j) % len(words)] for j in range(40)) + f" {37 * i}." for i in range(200)]
