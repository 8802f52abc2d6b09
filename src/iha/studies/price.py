"""Jobs of relation composition and of the learned separation: small models, priced from their budgets and FLOPs.

Early stopping may end a relation run before its budget does, so its price is the most it takes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from iha.config.schema import Config
from iha.config.studies import RelationTask, SyntheticConfig
from iha.planning.price import LOG_BYTES, PROCESS_BYTES, SAVED_BYTES, STATE_BYTES, Job, register_study, small
from iha.studies.relations import shapes
from iha.studies.relations.folders import run_name
from iha.studies.separation.grid import points
from iha.studies.separation.price import recipe, training_flops

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
    """Examples of every task and all runs, as the workflow's rules name them, and their own report."""
    study = config.synthetic
    if study is None or config.goal == "separation":
        return []
    found = [_examples(config, study, task) for task in study.tasks]
    found += [_relation_run(config, study, *key) for key in shapes.runs(study)]
    if config.goal == "synthetic":
        found.append(small(config, "synthetic_report", after=tuple(job.name for job in found)))
    return found


def _examples(config: Config, study: SyntheticConfig, task: RelationTask) -> Job:
    e = study.examples
    cells = (e.train + e.validation + e.test) * sum(m * m for m in task.sizes) / len(task.sizes)
    seconds = config.plan.small_seconds
    return Job(f"synthetic_data-{task.name}", "synthetic_data", seconds=seconds, memory=5e8, data_bytes=cells / 4)


def _relation_run(config: Config, study: SyntheticConfig, task: str, model: str, lr: float, seed: int) -> Job:
    part, name = shapes.train_slice(study, task, model, lr, seed), run_name(model, lr, seed)
    r, e, epochs = part.recipe, study.examples, part.budget.epochs
    seen = min(r.validation_examples or e.validation, e.validation)
    forward = part.flops / (3 * e.train)
    flops = epochs * (part.flops + r.evals_per_epoch * seen * forward) + e.test * forward
    work = Work(epochs * -(-e.train // r.batch), flops, part.budget.cpu_seconds)
    gpus = 0 if config.runtime.device == "cpu" else min(1, config.plan.total_gpus)
    after = (f"synthetic_data-{task}",)
    job = work.priced(config, f"synthetic_train-{task}-{name}", "synthetic_train", after, gpus)
    params = shapes.params(part.shape)
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
    if study is None or config.goal != "separation":
        return []
    grid = points(study)
    updates = sum(recipe(study, point).steps for point in grid)
    flops = float(sum(training_flops(study, point) for point in grid))
    return [Work(updates, flops, study.cpu_seconds).priced(config, "separation", "separation", (), 0)]
