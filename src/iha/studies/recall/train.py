"""Key-value recall: how much compute each attention variant needs to learn it, window, mixing and interleaving apart.

A sequence of N tokens starts with `pairs` distinct keys, each followed by its value; the rest repeats some of these
keys, each with its value. Loss and accuracy are measured at the repeated keys, whose value is to be predicted. Each
seed is trained until a running mean of its accuracy passes the target; what counts is the FLOPs and steps until then.

`python -m iha.studies.recall.train` is the entry point of the rule `recall_train`.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn.functional import cross_entropy

from iha.config.studies import RecallConfig
from iha.model.transformer import build_model
from iha.stages.common import Context, StageResult, run
from iha.studies.recall.grid import RecallSlice, step_flops

log = logging.getLogger("iha")
#: Weight of the past in the running mean of accuracy.
MEMORY = 0.95


def sequences(recall: RecallConfig, length: int, number: int, generator: Generator) -> Tensor:
    """Tokens (number, length): keys are 0 .. K - 1, values K .. 2 K - 1."""
    pairs, queries = recall.pairs, (length - 2 * recall.pairs) // 2
    order = torch.rand(number, recall.keys, generator=generator).argsort(dim=1)
    keys = order[:, :pairs]
    values = torch.randint(recall.keys, (number, pairs), generator=generator) + recall.keys
    again = torch.randint(pairs, (number, queries), generator=generator)
    first = torch.stack((keys, values), dim=2).flatten(1)
    later = torch.stack((keys.gather(1, again), values.gather(1, again)), dim=2).flatten(1)
    return torch.cat((first, later), dim=1)


def learn(part: RecallSlice, seed: int) -> dict[str, Any]:
    """Train one seed: steps and FLOPs until the target, None if `max_steps` do not reach it, and the last accuracy."""
    import torch

    recall = part.recall
    model = build_model(part.model, part.variant.attention, 2 * recall.keys, part.length, seed=seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=part.lr, betas=(0.9, 0.95), weight_decay=0.01)
    generator = torch.Generator().manual_seed(seed)
    queries = slice(2 * recall.pairs, part.length, 2)
    mean, solved = 0.0, None
    for step in range(1, recall.max_steps + 1):
        tokens = sequences(recall, part.length, recall.batch, generator)
        logits = model(tokens[:, :-1])[:, queries]
        expected = tokens[:, 1:][:, queries]
        loss = cross_entropy(logits.flatten(0, 1), expected.flatten())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = part.lr * min(1.0, step / recall.warmup_steps)
        optimizer.step()
        accuracy = float((logits.argmax(-1) == expected).float().mean())
        mean = MEMORY * mean + (1 - MEMORY) * accuracy
        if mean >= recall.target:
            solved = step
            break
    flops = None if solved is None else solved * step_flops(part)
    log.info("%s lr %g seed %d: solved after %s steps", part.variant.name, part.lr, seed, solved)
    return {"seed": seed, "steps": solved, "flops": flops, "accuracy": mean}


def body(part: RecallSlice, context: Context) -> StageResult:
    """All seeds of one variant at one learning rate; the manifest holds a row per seed."""
    torch.set_num_threads(context.threads)
    rows = [learn(part, seed) for seed in part.seeds]
    return StageResult(metadata={"step_flops": step_flops(part), "rows": rows})


def main() -> None:
    """Entry point of the rule `recall_train`."""
    run("recall_train", RecallSlice, body)


if __name__ == "__main__":
    main()
