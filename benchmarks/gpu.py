"""What only a GPU can show, in one run of at most nine minutes: kernels against float64, against peers, the 2.4B step.

Each line is written to the output file as soon as it is measured; a run cut short keeps what it has. Without a GPU, or
with ``--small``, the same code runs at small shapes, which says nothing about speed. Run: ``python benchmarks/gpu.py``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from timing import Run, both_ways
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from iha import doctor
from iha.config.load import load_config
from iha.config.schema import Budget, Config, Variant
from iha.data.loader import Batch
from iha.model.attention.kernels import attend
from iha.model.attention.masks import Mask
from iha.model.transformer import build_model
from iha.planning.flops import PricedModel
from iha.train.distributed import World
from iha.train.loop import Trainer, prepare
from iha.train.optimizer import AdamW

CONFIGS = Path(__file__).parent.parent / "configs"
PEERS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
Row = dict[str, object]


@dataclass(frozen=True)
class Size:
    """Shapes of one run: sequence lengths of the kernels, head width and heads, repeats, and the config of the step."""

    lengths: tuple[int, ...]
    width: int
    heads: int
    repeats: int
    config: str


FULL, SMALL = Size((8192, 65_536), 128, 4, 7, "paper.yaml"), Size((256,), 16, 2, 2, "smoke.yaml")


class Clock:
    """Seconds a call takes on the device, and how many of the budget are left."""

    def __init__(self, device: torch.device, minutes: float) -> None:
        self.device = device
        self.end = time.monotonic() + 60 * minutes

    def left(self) -> float:
        """Seconds until the budget is spent."""
        return self.end - time.monotonic()

    def once(self, run: Run) -> float:
        """One call, with everything queued before and by it finished."""
        self._wait()
        start = time.perf_counter()
        run()
        self._wait()
        return time.perf_counter() - start

    def interleaved(self, sides: dict[str, Run], repeats: int) -> dict[str, float]:
        """Median milliseconds of each side that runs here; rounds of all sides, after two that warm up and compile."""
        for _ in range(2):
            sides = {name: run for name, run in sides.items() if self._runs(run)}
        taken: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(repeats):
            for name, run in sides.items():
                taken[name].append(self.once(run))
        return {name: 1e3 * statistics.median(times) for name, times in taken.items()}

    def _runs(self, run: Run) -> bool:
        with suppress(RuntimeError, NotImplementedError):
            self.once(run)
            return True
        return False

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def ours(mask: Mask, inputs: list[Tensor], backend: str = "auto") -> Run:
    """A kernel of this package."""
    return both_ways(lambda q, k, v: attend(q, k, v, mask, inputs[0].shape[-1] ** -0.5, backend), inputs)


def peer(kind: SDPBackend, inputs: list[Tensor]) -> Run:
    """Causal attention by one of torch's fused kernels."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(kind):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return both_ways(attention, inputs)


def correctness(device: torch.device) -> Iterator[Row]:
    """Every kernel family that runs here against float64, forward and gradient."""
    for check in doctor.attention_kernels(device.type):
        yield {"part": "correctness", "kernel": check.name, "verdict": check.status, "result": check.result}


def kernels(size: Size, clock: Clock) -> Iterator[Row]:
    """Each variant's attention, forward and backward, and causal attention by each fused kernel: milliseconds."""
    dtype = torch.bfloat16 if clock.device.type == "cuda" else torch.float32
    for n in size.lengths:
        if clock.left() < 60:
            return

        def leaves(length: int, wide: int = 1) -> list[Tensor]:
            shapes = [(1, length, size.heads // wide if i == 2 else size.heads, size.width) for i in range(3)]
            shapes[2] = (*shapes[2][:3], size.width * wide)
            return [torch.randn(s, device=clock.device, dtype=dtype).transpose(1, 2).requires_grad_() for s in shapes]

        plain, pairs, causal = leaves(n), leaves(2 * n), Mask(n, n)
        window, native = max(1, size.lengths[0] // 8), max(1, size.lengths[0] // 16)
        times = clock.interleaved(
            {
                **{name: peer(kind, plain) for name, kind in PEERS.items()},
                "FlexAttention": ours(causal, plain, "flex"),
                "global": ours(causal, plain),
                "local layer": ours(Mask(n, n, window=native), plain),
                "IHA local layer, P = 2": ours(Mask(2 * n, 2 * n, window=2 * window, n_pseudo=2), pairs),
                "IHA local layer, token-causal": ours(
                    Mask(2 * n, 2 * n, window=2 * window, group=2, n_pseudo=2), pairs
                ),
                "diff": ours(causal, leaves(n, wide=2)),
            },
            size.repeats,
        )
        best = min((times[name] for name in (*PEERS, "FlexAttention") if name in times), default=times["global"])
        for name, ms in times.items():
            row = {
                "part": "kernels",
                "length": n,
                "kernel": name,
                "ms": round(ms, 4),
                "best_causal / this": round(best / ms, 3),
            }
            yield row | ({"met": best / ms >= 0.95, "target": 0.95} if name == "global" else {})


class Random:
    """Random tokens in place of a store."""

    def __init__(self, config: Config, device: torch.device) -> None:
        ids = torch.randint(1024, (config.pretrain.global_batch, config.pretrain.seq_len + 1), device=device)
        self.one = Batch(ids[:, :-1], ids[:, 1:], None)

    def batch(self, step: int, rank: int = 0, world: int = 1) -> Batch:
        """The same batch at every step."""
        return self.one

    def digest(self, step: int) -> str:
        """Not the subject here."""
        return str(step)


def steps(size: Size, clock: Clock) -> Iterator[Row]:
    """One sequence per step through the model of the config, variant by variant, while the budget lasts."""
    precision = "bf16" if clock.device.type == "cuda" else "fp32"
    overrides = [
        "pretrain={global_batch: 1, micro_batch: 1}",
        f"engine={{precision: {precision}, compile: {str(clock.device.type == 'cuda').lower()}}}",
    ]
    config = load_config(CONFIGS / size.config, overrides)
    variants = sorted(config.variants, key=lambda variant: variant.name not in ("global", "iha"))
    for variant in variants:
        if clock.left() < (90 if size is FULL else 0):
            return
        yield {"part": "step", "variant": variant.name, **step(config, variant, size, clock)}


def step(config: Config, variant: Variant, size: Size, clock: Clock) -> Row:
    """Milliseconds, tokens per second, FLOPs per second in the ledger's convention, peak memory."""
    cuda = clock.device.type == "cuda"
    recipe, vocab = config.pretrain, 128_256 if size is FULL else 1024
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    world = World(0, 1, clock.device)
    model = build_model(config.model, variant.attention, vocab, recipe.seq_len, seed=1, device=clock.device)
    optimizer = AdamW(dict(model.named_parameters()), model.no_decay_names(), recipe)
    data = Random(config, clock.device)
    loop = Trainer(prepare(model, config.engine, world), optimizer, data, recipe, world)
    first = clock.once(lambda: loop.train_step(data.one, recipe.seq_len))
    seconds = statistics.median(
        clock.once(lambda: loop.train_step(data.one, recipe.seq_len)) for _ in range(size.repeats)
    )
    priced = PricedModel(config.model, variant.attention, vocab, recipe.seq_len)
    flops = priced.step_flops(Budget(seq_len=recipe.seq_len, steps=1, global_batch=1))
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "first_s": round(first, 2),
        "ms": round(1e3 * seconds, 2),
        "tokens_per_s": round(recipe.seq_len / seconds),
        "tflops": round(flops / seconds / 1e12, 3),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if cuda else None,
    }


def main() -> None:
    """Run all parts, the output growing line by line; the last line on the screen is all of it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="small shapes, as without a GPU")
    parser.add_argument("--minutes", type=float, default=9.0, help="no part starts that would exceed it")
    parser.add_argument("--out", type=Path, default=Path("gpu.jsonl"), help="one JSON object per line, as measured")
    given = parser.parse_args()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    size = SMALL if given.small or not cuda else FULL
    clock, rows = Clock(device, given.minutes), []
    with given.out.open("w") as out:
        for part in (correctness(device), kernels(size, clock), steps(size, clock)):
            for row in part:
                rows.append(row)
                out.write(json.dumps(row) + "\n")
                out.flush()
                print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    name = torch.cuda.get_device_name() if cuda else "CPU"
    print(json.dumps({"benchmark": "gpu", "device": name, "torch": torch.__version__, "rows": rows}))


if __name__ == "__main__":
    main()
