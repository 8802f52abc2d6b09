"""Every job of the language models with its price: the same jobs, names and order as the workflow's rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from iha.config.schema import MODEL_STAGES, SPLITS, Config, Recipe, Suite, TrainStage
from iha.plan.job import LOG_BYTES, Job, small
from iha.plan.price import Machine, itemsize
from iha.planning import dag
from iha.planning.flops import matched_steps
from iha.planning.slices import LedgerSlice

#: Items of the benchmarks as published; `evals.limit` may cut them.
ITEMS = {"gsm8k": 1319, "math500": 500, "mbpp": 500, "humaneval": 164}
#: Bytes that a training's journal gains per step, as measured.
JOURNAL_BYTES = 300
#: Bytes of a kept answer per token of it, compressed.
SAMPLE_BYTES = 4


def language_jobs(config: Config) -> list[Job]:
    """Jobs of the language models and of what is known beside them, each after those it waits for."""
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
        made = small(config, "ruler", f"ruler-{length}", ("tokenizer", "items"), tokens, cores=1)
        yield replace(made, data_bytes=4.0 * tokens)


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
