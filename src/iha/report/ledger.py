"""The FLOP ledger as a table."""

from __future__ import annotations

from typing import Any

from iha.report.collect import Results
from iha.report.format import MISSING, big, display, signed
from iha.report.records import Grid, Text
from iha.report.tables import caption
from iha.slices import SPLITS

HEADER = (
    "variant", "parameters", "attention params", "forward FLOPs / token", "attention part", "vs reference (forward)",
    "steps pretrain / extend / sft", "pretraining FLOPs", "mismatch", "KV cache, longest context",
)  # fmt: skip
CONVENTION = (
    "Live pairs: 2 FLOPs per multiply-add; matmul parameters times tokens plus the products of each (query, key) pair "
    "that the mask leaves; training = 3 x forward; embedding look-ups are free, the output head is counted.",
    "Attention part: score and value products against the reference's (1.00 = equal), without projections and mixing.",
    "Mismatch: pretraining FLOPs against the reference's; KV cache: one sequence in bf16.",
)


def flops_grid(results: Results) -> Grid:
    """One row per variant; empty if the ledger is not among the inputs."""
    rows = results.facts("flops").get("variants", {})
    grid = tuple(_row(v, rows[v]) for v in results.part.variants if v in rows)
    return Grid("flops", caption(results, "FLOP ledger."), HEADER, grid, CONVENTION)


def _row(variant: str, row: dict[str, Any]) -> tuple[Text, ...]:
    params, steps = row.get("params", {}), row.get("steps", {})
    cache = row.get("cache_bytes", {})
    longest = max(cache, key=int, default=None)
    texts = (
        big(params.get("total")),
        big(params.get("attention")),
        big(row.get("flops_per_token", {}).get("forward")),
        _ratio(row.get("attention_ratio")),
        _ratio(row.get("forward_ratio")),
        " / ".join(str(steps.get(stage, MISSING)) for stage in SPLITS),
        big(row.get("train_flops", {}).get("pretrain")),
        f"{signed(100 * row.get('mismatch', 0.0), 2)} %",
        f"{big(cache[longest])}B at {longest}" if longest else MISSING,
    )
    return (Text(display(variant)), *(Text(t) for t in texts))


def _ratio(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}"
