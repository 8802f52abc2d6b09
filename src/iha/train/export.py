"""What a finished run leaves: the final weights as a model folder, and the facts of its manifest."""

from __future__ import annotations

import shutil
from typing import Any

from iha.artifacts.faults import fault_point
from iha.artifacts.manifest import sync_folder
from iha.artifacts.run import StageResult
from iha.model.files import save_model
from iha.model.transformer import Transformer, build_model
from iha.train import identity
from iha.train.distributed import whole
from iha.train.loop import Loop
from iha.train.run import Run


def export(run: Run, model: Transformer) -> None:
    """Write the final weights as a whole folder; a collective call when the weights are sharded."""
    part, final = run.part, run.folder / identity.FINAL
    temporary, old = final.with_name("final.tmp"), final.with_name("final.old")
    plain = model
    if run.world.size > 1:
        weights = {name: whole(value).cpu() for name, value in model.state_dict().items()}
        plain = build_model(part.model, part.variant.attention, part.vocab_size, part.pretrain_len, seed=None)
        plain.load_state_dict(weights)
    if not run.world.leads:
        return
    for leftover in (temporary, old):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary.mkdir()
    fault_point("export")
    tokenizer = run.context.inputs["store"].facts.get("tokenizer_sha256")
    origin = {"stage": part.stage, "variant": part.variant.name, "seed": part.seed, "tokenizer": tokenizer}
    save_model(plain, temporary, origin)
    fault_point("export.written")
    if final.exists():
        final.rename(old)
    temporary.rename(final)
    sync_folder(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def describe(run: Run, loop: Loop, record: dict[str, Any], run_id: str | None) -> StageResult:
    """Files and facts of the manifest; empty on ranks that write none."""
    if not run.world.leads:
        return StageResult()
    final = run.folder / identity.FINAL
    files = {path.stem if path.suffix == ".json" else "weights": run.context.entry(path) for path in final.iterdir()}
    facts = {
        "steps": loop.counters.step,
        "tokens": loop.counters.tokens,
        "final_loss": loop.guard.final_loss,
        "data_digest": loop.counters.digest,
        "data_digests": loop.counters.milestones,
        "weights_sha256": files["weights"].sha256,
        "skipped_steps": loop.guard.skipped,
        "flops": run.flops(),
        "model": final.relative_to(run.context.state).as_posix(),
        "codes": record["codes"],
    }
    return StageResult(files=files, metadata=facts, run_id=run_id)
