"""Jobs of relation composition and of the learned separation: small models, priced from their budgets and FLOPs.

Early stopping may end a relation run before its budget does, so its price is the most it takes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from iha.config.schema import Config
from iha.config.studies import RelationTask, SeparationConfig, SyntheticConfig
from iha.planning.price import LOG_BYTES, PROCESS_BYTES, SAVED_BYTES, STATE_BYTES, Job, register_study, small
from iha.studies.recall.grid import recall_slice, step_flops
from iha.studies.recall.grid import run_name as recall_name
from iha.studies.recall.grid import runs as recall_runs
from iha.studies.relations import grid
from iha.studies.separation.grid import Point, points, recipe

#: Checkpoints of a relation run at once, of weights, best weights and two moments; bytes of its log per validation.
CHECKPOINTS, VALIDATION_BYTES = 3, 120


@dataclass(frozen=True)
class Work:
    """Updates and FLOPs of a job, and the seconds of process time that its budget allows (None: no limit)."""

    updates: int
    flops: float
    limit: float | None

    def priced(self, config: Config, name: str, rule: str, after: tuple[str, ...], gpus: int) -> Job:
        """The job that does it, on a GPU or on its CPU threads."""
        plan, units = config.plan, gpus or config.runtime.threads
        speed = plan.peak_tflops * 1e12 * plan.study_efficiency if gpus else plan.core_gflops * 1e9
        busy = self.updates * plan.update_seconds + self.flops / speed
        return Job(
            name,
            rule,
            after,
            gpus=gpus,
            cores=config.runtime.threads,
            seconds=plan.start_seconds + min(busy, self.limit or busy) / units,
            memory=2e9 if gpus else PROCESS_BYTES,
            flops=self.flops,
        )


@register_study
def relations(config: Config) -> list[Job]:
    """Examples of every task, all runs and their page, as the workflow's rules name them."""
    study = config.synthetic
    if study is None or config.goal not in ("synthetic", "report"):
        return []
    found = [_examples(config, study, task) for task in study.tasks]
    found += [_relation_run(config, study, *key) for key in grid.runs(study)]
    return [*found, small(config, "synthetic_report", after=tuple(job.name for job in found))]


def _examples(config: Config, study: SyntheticConfig, task: RelationTask) -> Job:
    e = study.examples
    cells = (e.train + e.validation + e.test) * sum(m * m for m in task.sizes) / len(task.sizes)
    seconds = config.plan.small_seconds
    return Job(f"synthetic_data-{task.name}", "synthetic_data", seconds=seconds, memory=5e8, data_bytes=cells / 4)


def _relation_run(config: Config, study: SyntheticConfig, task: str, model: str, lr: float, seed: int) -> Job:
    part, name = grid.train_slice(study, task, model, lr, seed), grid.run_name(model, lr, seed)
    r, e = part.recipe, study.examples
    per_epoch = -(-e.train // r.batch)
    updates = min(grid.last_steps(part.budget, per_epoch, part.flops).values())
    epochs = updates / per_epoch
    evaluated = sum(min(r.validation_examples or n, n) for n in (e.validation, e.test))
    forward = part.flops / (3 * e.train)
    flops = epochs * (part.flops + r.evals_per_epoch * evaluated * forward) + e.test * forward
    work = Work(updates, flops, part.budget.cpu_seconds)
    gpus = 0 if config.runtime.device == "cpu" else min(1, config.plan.total_gpus)
    after = (f"synthetic_data-{task}",)
    job = work.priced(config, f"synthetic_train-{task}-{name}", "synthetic_train", after, gpus)
    params = grid.params(part.shape)
    return replace(
        job,
        memory=job.memory + STATE_BYTES * params,
        checkpoint_bytes=params * (CHECKPOINTS * (SAVED_BYTES + 4) + 4),
        log_bytes=LOG_BYTES + VALIDATION_BYTES * epochs * r.evals_per_epoch,
        state=f"synthetic/{task}/{name}",
    )


@register_study
def separation(config: Config) -> list[Job]:
    """All points of the learned separation, which are one job on CPU."""
    study = config.separation
    if study is None or config.goal not in ("separation", "report"):
        return []
    order = points(study)
    updates = sum(recipe(study, point).steps for point in order)
    flops = float(sum(training_flops(study, point) for point in order))
    return [Work(updates, flops, study.cpu_seconds).priced(config, "separation", "separation", (), 0)]


@register_study
def recall(config: Config) -> list[Job]:
    """A job per variant and learning rate, priced at `max_steps`, which a seed that solves the task does not need."""
    study = config.recall
    if study is None or config.goal not in ("recall", "report"):
        return []
    found = []
    for variant, lr in recall_runs(config):
        updates = study.max_steps * len(config.seeds)
        flops = float(step_flops(recall_slice(config, variant, lr))) * updates
        name = f"recall_train-{recall_name(variant, lr)}"
        found.append(Work(updates, flops, None).priced(config, name, "recall_train", (), 0))
    return [*found, small(config, "recall", after=tuple(job.name for job in found))]


def forward_flops(config: SeparationConfig, point: Point) -> int:
    """Forward FLOPs of one seed's batch, 2 per multiply-add, as `iha.studies.separation.learn.Learner` computes it.

    Weights are mixed, not tokens, so the mixing does not grow with the batch. Elementwise work is not counted.
    """
    linear, h, p = point.task != "cpm", point.heads, max(1, point.pseudo_heads)
    n = config.filters.nodes if linear else point.size
    inputs, virtual, tokens = n + 1, p * h * n, recipe(config, point).batch * n
    widths = [point.size] if linear else [config.cpm.mlp_width, config.cpm.mlp_width, 1]
    scores = 4 * p * h * n * n if linear else 4 * p * p * h * n * n
    read = sum(2 * a * b for a, b in zip([virtual, *widths], widths, strict=False))
    mixing = 2 * p * h * h * n * (3 * inputs + widths[0]) if point.layer == "iha" else 0
    return tokens * (6 * virtual * inputs + scores + read) + mixing


def training_flops(config: SeparationConfig, point: Point) -> int:
    """Training FLOPs of a point, all seeds and steps, three times those of the forward passes."""
    return 3 * config.seeds * recipe(config, point).steps * forward_flops(config, point)
