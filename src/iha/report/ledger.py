"""The FLOP ledger as a table."""

from __future__ import annotations

from typing import Any

from iha.config.schema import SPLITS
from iha.report.collect import Results
from iha.report.format import MISSING, big, display, signed
from iha.report.records import Grid, Text
from iha.report.tables import caption

HEADER = (
    "variant", "parameters", "attention params", "forward FLOPs / token", "attention part", "forward vs reference",
    "steps, pretrain / extend / sft", "tokens, pretrain / extend / sft", "pretraining FLOPs",
    "mismatch, pretrain / extend / sft, %", "KV cache, longest context",
)  # fmt: skip
CONVENTION = (
    "Live pairs: 2 FLOPs per multiply-add; matmul parameters times tokens plus the products of each (query, key) pair "
    "that the mask leaves; training = 3 x forward; embedding look-ups are free, the output head is counted.",
    "Attention part: score and value products against the reference's (1.00 = equal), without projections and mixing. "
    "FLOPs per token and both ratios are at the pretraining length; each stage is priced at its own, where attention "
    "weighs more or less, hence its steps.",
    "Mismatch: a stage's FLOPs against the reference's; steps are whole, so that a stage of few steps cannot match.",
    "Tokens: all variants read one stream in the same order; who takes more steps reads further.",
    "KV cache: one sequence in bf16; a local layer keeps the keys of its window alone, a global one all.",
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
    forward, spent = row.get("flops_per_token", {}).get("forward"), row.get("train_flops", {}).get("pretrain")
    away = row.get("stage_mismatch", {"pretrain": row.get("mismatch", 0.0)})
    tokens = row.get("tokens", {})
    cells = {
        "parameters": (big(params.get("total")), params.get("total")),
        "attention_parameters": (big(params.get("attention")), params.get("attention")),
        "forward_flops_per_token": (big(forward), forward),
        "attention_ratio": (_ratio(row.get("attention_ratio")), row.get("attention_ratio")),
        "forward_ratio": (_ratio(row.get("forward_ratio")), row.get("forward_ratio")),
        "steps": (" / ".join(str(steps.get(stage, MISSING)) for stage in SPLITS), steps),
        "tokens": (" / ".join(big(tokens.get(stage)) for stage in SPLITS), tokens),
        "pretrain_flops": (big(spent), spent),
        "mismatch": (" / ".join(signed(100 * away[s], 2) if s in away else MISSING for s in SPLITS), away),
        "cache_bytes": (f"{big(cache[longest])}B at {longest}" if longest else MISSING, cache.get(longest)),
    }
    named = (Text(shown, cell=f"flops:{variant}:{name}", value=value) for name, (shown, value) in cells.items())
    return (Text(display(variant)), *named)


def _ratio(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}"
