"""Every job of the language models with its price: the same jobs, names and order as the workflow's rules.

Relation composition and the learned separation end at budgets of their own and are not priced.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from iha import dag
from iha.config import Config, Recipe, Suite
from iha.flops import matched_steps
from iha.plan.price import Machine, itemsize
from iha.slices import MODEL_STAGES, SPLITS, LedgerSlice, TrainStage

#: Items of the benchmarks as published; `evals.limit` may cut them.
ITEMS = {"gsm8k": 1319, "math500": 500, "mbpp": 500, "humaneval": 164}
#: Bytes that a training's journal gains per step, and any log per job, as measured.
JOURNAL_BYTES, LOG_BYTES = 300, 4000
#: Bytes of a kept answer per token of it, compressed.
SAMPLE_BYTES = 4


@dataclass(frozen=True)
class Job:
    """One job; `name` is also that of its log and benchmark file.

    `memory`: bytes of one rank (GPU memory, or the process's on CPU). `checkpoint_bytes`: most that lies on disk at
    once, final weights included. `data_bytes`: token stores, items and samples.
    """

    name: str
    rule: str
    after: tuple[str, ...] = ()
    gpus: int = 0
    cores: int = 1
    seconds: float = 0.0
    memory: float = 0.0
    checkpoint_bytes: float = 0.0
    log_bytes: float = LOG_BYTES
    data_bytes: float = 0.0
    tokens: int = 0
    flops: float = 0.0
    flops_12lds: float = 0.0

    @property
    def gpu_hours(self) -> float:
        """GPUs times hours."""
        return self.gpus * self.seconds / 3600

    @property
    def cpu_hours(self) -> float:
        """Core hours of a job without a GPU."""
        return 0.0 if self.gpus else self.cores * self.seconds / 3600


def jobs(config: Config) -> list[Job]:
    """All jobs, each after those it waits for."""
    return [*_prepare(config), *_train(config), *_evaluate(config), _report(config)]


def _small(config: Config, rule: str, name: str = "", after: tuple[str, ...] = (), tokens: int = 0) -> Job:
    """A job on CPU that handles `tokens` on all its workers."""
    cores = config.runtime.workers if tokens else 1
    seconds = config.plan.small_seconds + tokens / config.plan.core_tokens_per_second / cores
    return Job(name or rule, rule, after, cores=cores, seconds=seconds, memory=5e8)


def _split_tokens(config: Config, split: TrainStage) -> int:
    """Tokens of a store: what the config stops at, else what one epoch of its training needs."""
    recipe: Recipe = getattr(config, split)
    limit: int | None = getattr(config.data, split).max_tokens
    return limit or recipe.tokens


def _prepare(config: Config) -> Iterator[Job]:
    width = itemsize(config.tokenizer.vocab_size)
    for rule in ("tracking", "flops", "items", "theory", *(("faults",) if config.rehearse else ())):
        yield _small(config, rule)
    yield _small(config, "tokenizer", tokens=config.tokenizer.train_bytes if config.tokenizer.kind == "bpe" else 0)
    for split in SPLITS:
        tokens = _split_tokens(config, split)
        size = tokens * (width + 3 if split == "sft" else width)
        store = _small(config, "tokenise", f"tokenise-{split}", ("tokenizer",), tokens)
        yield replace(store, data_bytes=size, tokens=tokens)
        yield _small(config, "contamination", f"contamination-{split}", (store.name, "items"), tokens)
    for length, tasks in dag.ruler_lengths(config).items():
        tokens = len(tasks) * config.evals.ruler_samples * length
        made = _small(config, "ruler", f"ruler-{length}", ("tokenizer", "items"), tokens)
        yield replace(made, cores=1, data_bytes=4.0 * tokens)


def _train(config: Config) -> Iterator[Job]:
    part = dag.ledger_slice(config)
    for variant in config.variants:
        for seed in config.seeds:
            for stage in SPLITS:
                parents: tuple[str, ...] = ("tokenizer", f"tokenise-{stage}")
                if stage != "pretrain":
                    parents += (f"pretrain-{variant.name}-seed{seed}",)
                name = f"{stage}-{variant.name}-seed{seed}"
                yield _training(Machine(config, variant.attention), part, stage, variant.name, name, parents)


def _training(
    machine: Machine, part: LedgerSlice, stage: TrainStage, variant: str, name: str, after: tuple[str, ...]
) -> Job:
    config = machine.config
    recipe, gpus, steps = machine.recipe(stage), machine.gpus(stage), matched_steps(part, stage, variant)
    tokens = recipe.global_batch * recipe.seq_len
    return Job(
        name,
        stage,
        after,
        gpus=gpus,
        cores=config.runtime.threads,
        seconds=config.plan.start_seconds + steps * machine.step_seconds(stage),
        memory=machine.training_memory(stage),
        checkpoint_bytes=machine.checkpoint_bytes(stage),
        log_bytes=LOG_BYTES + JOURNAL_BYTES * steps,
        tokens=steps * tokens,
        flops=float(steps * machine.step_flops(stage)),
        flops_12lds=float(steps * tokens * machine.model.twelve_lds(recipe.seq_len)),
    )


def _evaluate(config: Config) -> Iterator[Job]:
    for variant in config.variants:
        for seed in config.seeds:
            for suite in config.evals.suites:
                trained = f"{MODEL_STAGES[suite.model]}-{variant.name}-seed{seed}"
                after = (trained, "tokenizer", "items", *(f"ruler-{n}" for n in suite.lengths))
                name = f"evaluate-{variant.name}-seed{seed}-{suite.name}-{suite.model}"
                yield _suite(Machine(config, variant.attention), suite, name, after)


def _suite(machine: Machine, suite: Suite, name: str, after: tuple[str, ...]) -> Job:
    config, evals = machine.config, machine.config.evals
    if suite.lengths:
        work = [(len(suite.tasks) * evals.ruler_samples, n) for n in suite.lengths]
    else:
        counts = (min(ITEMS[task], evals.limit or ITEMS[task]) for task in suite.tasks)
        samples = evals.samples if suite.model == "sft" else evals.base_samples
        work = [(sum(counts) * samples, config.pretrain.seq_len // 8)]
    answer = min(evals.max_new_tokens, getattr(config.plan.answer_tokens, suite.model))
    return Job(
        name,
        "evaluate",
        after,
        gpus=machine.evaluating,
        cores=config.runtime.threads,
        seconds=config.plan.start_seconds + sum(machine.answer_seconds(n, prompt, answer) for n, prompt in work),
        memory=machine.answer_memory(max(prompt for _, prompt in work) + answer),
        data_bytes=SAMPLE_BYTES * answer * sum(n for n, _ in work),
    )


def _report(config: Config) -> Job:
    last = tuple(job.name for job in (*_train(config), *_evaluate(config)))
    searched = tuple(f"contamination-{split}" for split in SPLITS)
    return _small(
        config,
        "report",
        after=("flops", "items", "theory", *(("faults",) if config.rehearse else ()), *searched, *last),
    )
