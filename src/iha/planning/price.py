"""The price of a run: time, memory, disk, energy and money of every job, from the ledger and stated efficiencies.

What the jobs that have finished took is read next to it. Free of torch.
"""

from __future__ import annotations

import csv
import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from iha.config.schema import MODEL_STAGES, SPLITS, Budget, Config, PlanConfig, Recipe, Suite, TrainStage
from iha.errors import ConfigError
from iha.planning import dag
from iha.planning.flops import PricedModel, matched_steps
from iha.planning.slices import LedgerSlice
from iha.variants.base import AttentionSpec

#: Bytes of any log, as measured.
LOG_BYTES = 4000
#: Bytes of a parameter in training: fp32 weight, gradient and two moments; in a checkpoint: without the gradient.
STATE_BYTES, SAVED_BYTES = 16, 12
#: Tokens that a batch of answers may hold (evals/generate.py; a test compares).
BATCH_TOKENS = 131_072
#: Process memory of torch on CPU before any model.
PROCESS_BYTES = 4e8
#: Items of the benchmarks as published; `evals.limit` may cut them.
ITEMS = {"gsm8k": 1319, "math500": 500, "mbpp": 500, "humaneval": 164}
#: Bytes that the metrics file of a training run gains per step, as measured.
METRICS_BYTES = 300
#: Bytes of a kept answer per token of it, compressed.
SAMPLE_BYTES = 4


@dataclass(frozen=True)
class Job:
    """One job; `name` is also that of its log and benchmark file.

    `memory`: bytes of one rank (GPU memory, or the process's on CPU). `checkpoint_bytes`: most that is on disk at
    once, final weights included. `data_bytes`: token stores, items and samples. `state`: place of the checkpoints in
    the experiment's state directory.
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
    state: str = ""

    @property
    def gpu_hours(self) -> float:
        """GPUs times hours."""
        return self.gpus * self.seconds / 3600

    @property
    def cpu_hours(self) -> float:
        """Core hours of a job without a GPU."""
        return 0.0 if self.gpus else self.cores * self.seconds / 3600


def small(
    config: Config, rule: str, name: str = "", after: tuple[str, ...] = (), tokens: int = 0, cores: int | None = None
) -> Job:
    """A job on CPU that handles `tokens` on `cores`, by default on all its workers."""
    if cores is None:
        cores = config.runtime.workers if tokens else 1
    seconds = config.plan.small_seconds + tokens / config.plan.core_tokens_per_second / cores
    return Job(name or rule, rule, after, cores=cores, seconds=seconds, memory=5e8)


# ---- time and memory of one variant's work -------------------------------------------------------------------------


def itemsize(vocab_size: int) -> int:
    """Bytes of a stored token id."""
    return 2 if vocab_size <= 65_536 else 4


@dataclass(frozen=True)
class Machine:
    """One variant on the machine of the config."""

    config: Config
    attention: AttentionSpec

    @property
    def model(self) -> PricedModel:
        """The decoder as the ledger sees it."""
        c = self.config
        return PricedModel(c.model, self.attention, c.tokenizer.vocab_size, c.pretrain.seq_len)

    def recipe(self, stage: TrainStage) -> Recipe:
        """The recipe of a stage."""
        found: Recipe = getattr(self.config, stage)
        return found

    def gpus(self, stage: TrainStage) -> int:
        """GPUs of one training job.

        Raises:
            ConfigError: the global batch does not divide over them, which the trainer would refuse.
        """
        plan, batch = self.config.plan, self.recipe(stage).global_batch
        stated: int | None = getattr(plan.gpus, stage)
        if stated is None:
            return max((n for n in range(1, plan.total_gpus + 1) if batch % n == 0), default=0)
        if stated and batch % stated:
            raise ConfigError(
                f"plan.gpus.{stage} is {stated}; allowed: a divisor of {stage}.global_batch, {batch} "
                f"(training refuses ranks that its batch does not divide over)."
            )
        return stated

    @property
    def evaluating(self) -> int:
        """GPUs of one evaluation."""
        plan = self.config.plan
        return min(1, plan.total_gpus) if plan.gpus.evaluate is None else plan.gpus.evaluate

    def units(self, gpus: int) -> int:
        """What computes: GPUs, or the job's CPU threads."""
        return gpus or self.config.runtime.threads

    def step_flops(self, stage: TrainStage) -> int:
        """Training FLOPs of one step, in the ledger's convention."""
        r = self.recipe(stage)
        return self.model.step_flops(Budget(seq_len=r.seq_len, steps=r.steps, global_batch=r.global_batch))

    def step_seconds(self, stage: TrainStage) -> float:
        """Wall time of one optimiser step. Recomputed blocks cost a fourth pass; the head is never recomputed."""
        recipe, gpus = self.recipe(stage), self.gpus(stage)
        blocks = 4 if self.config.engine.activation_checkpointing else 3
        plan, work = self.config.plan, self.model.forward(recipe.seq_len)
        products = blocks * (work.projections + work.mixing + work.mlp) + 3 * work.head
        seconds = products / plan.matmul_efficiency + blocks * work.attention / self._attention_share()
        network = plan.network_efficiency if gpus > plan.gpus_per_node else 1.0
        return recipe.global_batch * seconds / (plan.peak_tflops * 1e12 * self.units(gpus) * network)

    def _attention_share(self) -> float:
        shares = self.config.plan.attention_efficiency
        return shares.get(self.attention.kind) or shares.get("other") or self.config.plan.matmul_efficiency

    def training_memory(self, stage: TrainStage) -> float:
        """Peak bytes of one rank, within a third: state, gathered weights, activations, loss."""
        c, m, parts = self.config, self.config.model, self.model.params()
        gpus, recipe = self.gpus(stage), self.recipe(stage)
        shards = max(1, min(gpus, c.plan.gpus_per_node))
        head = c.tokenizer.vocab_size * m.hidden_dim
        block = (parts["attention"] + parts["mlp"]) / m.n_layers
        gathered = 4 * (3 * block + 2 * head) if shards > 1 else 0
        width = 2 if c.engine.precision == "bf16" else 4
        rows = min(recipe.micro_batch, max(1, recipe.global_batch // max(1, gpus))) * recipe.seq_len
        # Per token and block: residual (fp32), norms, q, k, v, output and their inputs, three widths of the MLP.
        inside = rows * (8 * m.hidden_dim + width * (12 * m.hidden_dim + 4 * m.ffn_dim))
        kept = 4 * rows * m.hidden_dim * m.n_layers
        activations = kept + inside if c.engine.activation_checkpointing else inside * m.n_layers
        loss = 4 * head + 6 * c.engine.loss_chunk * c.tokenizer.vocab_size
        return STATE_BYTES * parts["total"] / shards + gathered + activations + loss + self._process(gpus)

    def _process(self, gpus: int) -> float:
        """Memory used before any model is built: CUDA's context, or torch in the process."""
        return 2e9 if gpus else PROCESS_BYTES

    def checkpoint_bytes(self, stage: TrainStage) -> float:
        """Most that one run holds: the kept checkpoints, the last healthy, one being written, the final weights."""
        total = self.model.params()["total"]
        return total * (SAVED_BYTES * (self.recipe(stage).keep_checkpoints + 2) + 4)

    def answer_seconds(self, questions: int, samples: int, prompt: int, length: int) -> float:
        """Time to read each question's prompt once and write `samples` answers of `length` tokens to it, in batches."""
        plan, batch = self.config.plan, self._rows(prompt + length)
        work, units = self.model.forward(prompt), self.units(self.evaluating)
        peak = plan.peak_tflops * 1e12 * units
        reading = (work.total - work.attention) / plan.matmul_efficiency + work.attention / self._attention_share()
        moved = 2 * self.model.params()["total"] + batch * self.model.cache_bytes(prompt + length // 2)
        writing = length * moved / (plan.bandwidth_gb_s * 1e9 * units * plan.decode_efficiency)
        return questions * reading / peak + -(-questions * samples // batch) * writing

    def answer_memory(self, length: int) -> float:
        """Bytes of weights and of the caches of a batch."""
        cached = self._rows(length) * self.model.cache_bytes(length)
        return 2 * self.model.params()["total"] + cached + self._process(self.evaluating)

    def _rows(self, length: int) -> int:
        """Answers of `length` tokens, prompt included, in one batch."""
        return max(1, min(self.config.evals.batch_size, BATCH_TOKENS // length))


# ---- the jobs of the language models -------------------------------------------------------------------------------


def language_jobs(config: Config) -> list[Job]:
    """Jobs of the language models, each after those it waits for."""
    return [*_prepare(config), *_train(config), *_evaluate(config)]


def _split_tokens(config: Config, split: TrainStage) -> int:
    """Tokens of a store: what the config stops at, else what one epoch of its training needs."""
    recipe: Recipe = getattr(config, split)
    limit: int | None = getattr(config.data, split).max_tokens
    return limit or recipe.tokens


def _prepare(config: Config) -> Iterator[Job]:
    width = itemsize(config.tokenizer.vocab_size)
    for rule in ("tracking", "flops", "items", "theory"):
        yield small(config, rule)
    yield small(config, "tokenizer", tokens=config.tokenizer.train_bytes if config.tokenizer.kind == "bpe" else 0)
    for split in SPLITS:
        tokens = _split_tokens(config, split)
        size = tokens * (width + 3 if split == "sft" else width)
        store = small(config, "tokenise", f"tokenise-{split}", ("tokenizer",), tokens)
        yield replace(store, data_bytes=size, tokens=tokens)
        yield small(config, "contamination", f"contamination-{split}", (store.name, "items"), tokens)
    for length, tasks in dag.ruler_lengths(config).items():
        tokens = len(tasks) * config.evals.ruler_samples * length
        job = small(config, "ruler", f"ruler-{length}", ("tokenizer", "items"), tokens, cores=1)
        yield replace(job, data_bytes=4.0 * tokens)


def _train(config: Config) -> Iterator[Job]:
    part = dag.ledger_slice(config)
    for variant in config.variants:
        for seed in config.seeds:
            for stage in SPLITS:
                parents: tuple[str, ...] = ("tokenizer", f"tokenise-{stage}")
                if stage != "pretrain":
                    parents += (f"pretrain-{variant.name}-seed{seed}",)
                name = f"{stage}-{variant.name}-seed{seed}"
                job = _training(Machine(config, variant.attention), part, stage, variant.name, name, parents)
                yield replace(job, state=f"runs/{variant.name}/seed{seed}/{stage}")


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
        log_bytes=LOG_BYTES + METRICS_BYTES * steps,
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
        work, samples = [(len(suite.tasks) * evals.ruler_samples, n) for n in suite.lengths], 1
    else:
        counts = (min(ITEMS[task], evals.limit or ITEMS[task]) for task in suite.tasks)
        samples = evals.samples if suite.model == "sft" else evals.base_samples
        work = [(sum(counts), config.pretrain.seq_len // 8)]
    answer = min(evals.max_new_tokens, getattr(config.plan.answer_tokens, suite.model))
    busy = sum(machine.answer_seconds(n, samples, prompt, answer) for n, prompt in work)
    return Job(
        name,
        "evaluate",
        after,
        gpus=machine.evaluating,
        cores=config.runtime.threads,
        seconds=config.plan.start_seconds + busy,
        memory=machine.answer_memory(max(prompt for _, prompt in work) + answer),
        data_bytes=SAMPLE_BYTES * answer * samples * sum(n for n, _ in work),
    )


# ---- all jobs ------------------------------------------------------------------------------------------------------


StudyPrice = Callable[[Config], list[Job]]
_STUDIES: list[StudyPrice] = []


def register_study(price: StudyPrice) -> StudyPrice:
    """Add the jobs of a study to every plan: a function that returns those which a config's goal requires.

    Studies are above this module in the order of imports, so they register themselves (`iha.studies.price`), and the
    command line imports them.
    """
    if price not in _STUDIES:
        _STUDIES.append(price)
    return price


def jobs(config: Config) -> list[Job]:
    """All jobs that a config's goal requires, under the names and in the order of the workflow's rules.

    Raises:
        ConfigError: a batch does not divide over its GPUs.
    """
    found = [*language_jobs(config)] if config.goal == "report" else []
    for price in _STUDIES:
        found += price(config)
    if config.goal == "report":
        found.append(small(config, "report", after=tuple(job.name for job in found if job.rule != "tracking")))
    return found


# ---- when every job can run ----------------------------------------------------------------------------------------


def critical_path(jobs: list[Job]) -> tuple[float, list[str]]:
    """Longest chain of jobs that wait for one another: its seconds and their names. Jobs come after their parents."""
    ends: dict[str, float] = {}
    through: dict[str, str | None] = {}
    for job in jobs:
        last = max(job.after, key=ends.__getitem__, default=None)
        through[job.name] = last
        ends[job.name] = job.seconds + (ends[last] if last is not None else 0.0)
    name: str | None = max(ends, key=ends.__getitem__)
    seconds, path = ends[str(name)], []
    while name is not None:
        path.append(name)
        name = through[name]
    return seconds, path[::-1]


def wall_seconds(jobs: list[Job], gpus: int, cores: int) -> float:
    """Time from the first start to the last end if ready jobs with the longest way to go are started first."""
    urgency = _urgency(jobs)
    waiting = {job.name: set(job.after) for job in jobs}
    ready = [job for job in jobs if not job.after]
    running: list[tuple[float, str]] = []
    by_name, now, free = {job.name: job for job in jobs}, 0.0, [gpus, cores]
    while ready or running:
        ready.sort(key=lambda job: -urgency[job.name])
        for job in [*ready]:
            need = _need(job, gpus, cores)
            if all(n <= f for n, f in zip(need, free, strict=True)):
                free = [f - n for f, n in zip(free, need, strict=True)]
                heapq.heappush(running, (now + job.seconds, job.name))
                ready.remove(job)
        now, name = heapq.heappop(running)
        free = [f + n for f, n in zip(free, _need(by_name[name], gpus, cores), strict=True)]
        for job in jobs:
            if name in waiting[job.name]:
                waiting[job.name].discard(name)
                if not waiting[job.name]:
                    ready.append(job)
    return now


def _need(job: Job, gpus: int, cores: int) -> tuple[int, int]:
    """GPUs and cores a job occupies; one larger than the machine gets all of it, one on GPUs no core."""
    return (min(job.gpus, gpus), 0) if job.gpus else (0, min(job.cores, cores))


def _urgency(jobs: list[Job]) -> dict[str, float]:
    """Seconds from the start of each job to the end of all that waits for it."""
    left: dict[str, float] = {job.name: 0.0 for job in jobs}
    for job in reversed(jobs):
        left[job.name] += job.seconds
        for parent in job.after:
            left[parent] = max(left[parent], left[job.name])
    return left


# ---- what jobs took ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Actual:
    """Measured figures of one job: `seconds` of its last start, peak resident bytes, bytes of its checkpoints."""

    seconds: float
    memory: float
    checkpoint_bytes: float


def measured(config: Config, jobs: list[Job]) -> dict[str, Actual]:
    """Every job that has a benchmark file below the config's results directory."""
    runtime = config.runtime
    folder = Path(runtime.results_dir) / config.experiment / "benchmarks"
    state = Path(runtime.state_dir) / config.experiment
    found = {}
    for job in jobs:
        row = _last(folder / f"{job.name}.tsv")
        if row is not None:
            found[job.name] = Actual(_number(row.get("s")), 2**20 * _number(row.get("max_rss")), _held(state, job))
    return found


def _last(path: Path) -> dict[str, str] | None:
    if not path.is_file():
        return None
    with path.open(newline="") as handle:
        return next(iter([*csv.DictReader(handle, delimiter="\t")][-1:]), None)


def _number(text: str | None) -> float:
    """Snakemake writes NA and - for what a job was too short to measure."""
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


def _held(state: Path, job: Job) -> float:
    """Bytes of a job's checkpoints and final weights."""
    if not job.state:
        return 0.0
    return float(
        sum(p.stat().st_size for p in (state / job.state).glob("*/**/*") if p.is_file() and not p.is_symlink())
    )


# ---- the plan ------------------------------------------------------------------------------------------------------


def plan(config: Config) -> dict[str, Any]:
    """Price every job of a config.

    `rules`: sums by rule; `total`: sums, wall time on the available GPUs; `critical_path`: the longest chain if there
    were GPUs for all; `trainings`: speed of the language models by stage and variant. Hours, bytes, kWh and the
    config's currency. `actual` is given next to the prediction for jobs that have run.

    Raises:
        ConfigError: a batch does not divide over its GPUs.
    """
    found = jobs(config)
    actual = measured(config, found)
    chain, names = critical_path(found)
    by_rule: dict[str, list[Job]] = {}
    for job in found:
        by_rule.setdefault(job.rule, []).append(job)
    wall = wall_seconds(found, config.plan.total_gpus, config.plan.total_cores)
    return {
        "experiment": config.experiment,
        "device": config.plan.device,
        "currency": config.plan.currency,
        "rules": {rule: _sums(group, config.plan, actual) for rule, group in by_rule.items()},
        "total": {**_sums(found, config.plan, actual), "wall_hours": wall / 3600},
        "critical_path": {"hours": chain / 3600, "jobs": names},
        "trainings": _trainings(config, found),
    }


def _sums(group: list[Job], plan: PlanConfig, actual: dict[str, Actual]) -> dict[str, Any]:
    gpu_hours, cpu_hours = sum(j.gpu_hours for j in group), sum(j.cpu_hours for j in group)
    rows: dict[str, Any] = {
        "jobs": len(group),
        "gpu_hours": gpu_hours,
        "cpu_hours": cpu_hours,
        "longest_job_hours": max(j.seconds for j in group) / 3600,
        "memory_bytes_per_rank": max(j.memory for j in group),
        "checkpoint_bytes": sum(j.checkpoint_bytes for j in group),
        "log_bytes": sum(j.log_bytes for j in group),
        "data_bytes": sum(j.data_bytes for j in group),
        **_bill(plan, gpu_hours, cpu_hours),
    }
    ended = [job for job in group if job.name in actual]
    return {**rows, "actual": _actual(ended, plan, actual)} if ended else rows


def _bill(plan: PlanConfig, gpu_hours: float, cpu_hours: float) -> dict[str, float]:
    return {
        "energy_kwh": (plan.watts_per_gpu * gpu_hours + plan.watts_per_core * cpu_hours) / 1000,
        "cost": plan.price_per_gpu_hour * gpu_hours + plan.price_per_core_hour * cpu_hours,
    }


def _actual(ended: list[Job], plan: PlanConfig, actual: dict[str, Actual]) -> dict[str, Any]:
    """What the jobs that ended took, and what had been predicted for just these."""

    def hours(of: Iterable[tuple[float, float]]) -> float:
        return sum(units * seconds for units, seconds in of) / 3600

    took = [(job, actual[job.name]) for job in ended]
    gpu_hours = hours((job.gpus, a.seconds) for job, a in took)
    cpu_hours = hours((0 if job.gpus else job.cores, a.seconds) for job, a in took)
    return {
        "jobs": len(ended),
        "gpu_hours": gpu_hours,
        "cpu_hours": cpu_hours,
        "longest_job_hours": max(a.seconds for _, a in took) / 3600,
        "memory_bytes_per_rank": max(a.memory for _, a in took),
        "checkpoint_bytes": sum(a.checkpoint_bytes for _, a in took),
        **_bill(plan, gpu_hours, cpu_hours),
        "predicted_gpu_hours": sum(job.gpu_hours for job in ended),
        "predicted_cpu_hours": sum(job.cpu_hours for job in ended),
    }


def _trainings(config: Config, found: list[Job]) -> dict[str, dict[str, dict[str, float]]]:
    """Tokens/s of one GPU (or of the job's cores), and the share of the peak by the ledger's count and by 12 L D S."""
    table: dict[str, dict[str, dict[str, float]]] = {}
    for job in found:
        if job.rule in SPLITS:
            busy = job.seconds - config.plan.start_seconds
            units = job.gpus or config.runtime.threads
            peak = busy * units * config.plan.peak_tflops * 1e12
            table.setdefault(job.rule, {}).setdefault(
                job.name.split("-")[1],
                {
                    "tokens_per_second": job.tokens / busy / units,
                    "mfu": job.flops / peak,
                    "mfu_12lds": job.flops_12lds / peak,
                },
            )
    return table
