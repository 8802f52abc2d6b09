"""Ranks and devices, and how a model is prepared for them: recomputation, compilation, sharding, determinism.

The launcher starts the ranks with the usual variables (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR,
MASTER_PORT). One process is a world of one, without a process group. Parameters are sharded with FSDP2 inside a node
and replicated across nodes, so that the frequent gathers of fp32 weights use the fast links; gradients are reduced in
fp32.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from iha.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class World:
    """This process among the ranks of a training run."""

    rank: int
    size: int
    device: torch.device
    mesh: DeviceMesh | None = None

    @classmethod
    def single(cls, device: str | torch.device = "cpu") -> World:
        """A world of one process."""
        return cls(0, 1, torch.device(device))

    @property
    def device_name(self) -> str:
        """Product name of the GPU or CPU that this process computes on."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        try:
            lines = Path("/proc/cpuinfo").read_text().splitlines()
        except OSError:
            lines = []
        return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "cpu")

    @property
    def is_main(self) -> bool:
        """True on rank 0, which writes what is written once."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Sum over ranks, in place."""
        if self.size > 1:
            torch.distributed.all_reduce(values)
        return values

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, on every rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(values, value)
        return values

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        if self.size == 1:
            return value
        box = [value]
        torch.distributed.broadcast_object_list(box, src=0)
        return box[0]

    def barrier(self) -> None:
        """Wait until every rank has arrived here."""
        self.gather(None)

    def close(self) -> None:
        """Leave the process group."""
        if self.size > 1:
            torch.distributed.destroy_process_group()


def start(device: str) -> World:
    """Join the world that the environment describes, on `device` (auto, cpu, cuda).

    Raises:
        ConfigError: a GPU is requested and there is none.
    """
    size, rank = _number("WORLD_SIZE", 1), _number("RANK", 0)
    chosen = _device(device, _number("LOCAL_RANK", 0))
    if size == 1:
        return World.single(chosen)
    backend = "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, rank=rank, world_size=size, timeout=timedelta(minutes=10))
    return World(rank, size, chosen, _mesh(chosen.type, size, _number("LOCAL_WORLD_SIZE", size)))


def _number(variable: str, default: int) -> int:
    return int(os.environ.get(variable, str(default)))


def _device(device: str, local_rank: int) -> torch.device:
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError("runtime.device: 'cuda', but torch sees no GPU; allowed here: auto, cpu.")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _mesh(kind: str, size: int, local: int) -> DeviceMesh:
    """Shard over the ranks of a node, replicate over nodes; one dimension if there is one node or one rank each."""
    from torch.distributed.device_mesh import init_device_mesh

    if 1 < local < size and size % local == 0:
        return init_device_mesh(kind, (size // local, local), mesh_dim_names=("replicate", "shard"))
    return init_device_mesh(kind, (size,), mesh_dim_names=("shard",))


def parallelize(
    root: nn.Module, blocks: Iterable[nn.Module], world: World, *, recompute: bool = False, compiled: bool = False
) -> None:
    """Prepare a model in place; parameter names and values stay. The order is recompute, compile, shard.

    Args:
        root: the module with the loss; sharding gathers the embedding and the head at its boundary.
        blocks: the transformer blocks in `root`, each of which is recomputed, compiled and sharded by itself.
        world: the ranks to shard over; a world of one is not sharded.
        recompute: drop each block's activations after the forward pass, compute them again in the backward pass.
        compiled: compile each block.
    """
    blocks = list(blocks)
    if recompute:
        _recompute(blocks)
    if compiled:
        _compile(blocks)
    if world.size > 1:
        from torch.distributed.fsdp import fully_shard

        for block in blocks:
            fully_shard(block, mesh=world.mesh)
        fully_shard(root, mesh=world.mesh)


def _compile(blocks: list[nn.Module]) -> None:
    """Compile each block in place. Blocks share their code and differ in depth and window, hence the higher limit."""
    import torch._dynamo

    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 4 * len(blocks))
    for block in blocks:
        block.compile()


def _recompute(blocks: list[nn.Module]) -> None:
    from torch.utils.checkpoint import checkpoint

    for block in blocks:
        # Replacing the method, not the module, keeps parameter names.
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)


def make_deterministic(seed: int, threads: int) -> None:
    """Same seed, same bits on one machine and world size; operations without a deterministic form only warn."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.manual_seed(seed)
    torch.set_num_threads(threads)
    # Not use_deterministic_algorithms(): it imports the compiler, which costs seconds at every start.
    torch.set_deterministic_debug_mode("warn")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False


@dataclass(frozen=True)
class LocalShard:
    """This rank's rows [start, stop) of a tensor of global `shape`; `owner`: this rank is the one that saves them."""

    local: Tensor
    shape: tuple[int, ...]
    start: int
    stop: int
    owner: bool


def local_shard(tensor: Tensor, world: World) -> LocalShard:
    """The part of a tensor (plain, or sharded along its first dimension) that this rank holds."""
    shape = tuple(tensor.shape)
    rows = shape[0] if shape else 1
    if not hasattr(tensor, "to_local"):
        return LocalShard(tensor, shape, 0, rows, world.is_main)
    mesh = tensor.device_mesh  # type: ignore[attr-defined]
    coordinate = mesh.get_coordinate()
    share = -(-rows // mesh.size(-1))
    start, stop = min(rows, coordinate[-1] * share), min(rows, (coordinate[-1] + 1) * share)
    return LocalShard(tensor.to_local(), shape, start, stop, not any(coordinate[:-1]))


def full_tensor(tensor: Tensor) -> Tensor:
    """The full tensor on every rank (a collective call if it is sharded), detached."""
    full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full.detach()
