"""The frame of every stage: arguments in, one manifest out, errors as one message."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from iha.artifacts.fingerprint import ORIGINS, ROOT, git_state
from iha.artifacts.manifest import DamagedFile, Manifest, read_manifest, sha256_file, write_json, write_manifest
from iha.artifacts.run import RESUMABLE, Context, StageResult, die_with_parent
from iha.config.base import Frozen
from iha.errors import ConfigError, UserError

__all__ = ["RESUMABLE", "Context", "StageResult", "parser", "run"]

log = logging.getLogger("iha")
S = TypeVar("S", bound=Frozen)

#: Errors of a disk that the user can fix: full, over quota, read-only, not allowed.
UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES})


def parser(stage: str) -> argparse.ArgumentParser:
    """The arguments every stage takes."""
    p = argparse.ArgumentParser(
        prog=f"python -m iha.stages.{stage}",
        description=f"Stage {stage!r} of the workflow. Usually started by snakemake; "
        f"`snakemake --printshellcmds` shows the whole line.",
    )
    p.add_argument("--slice", required=True, help="this stage's part of the config, JSON")
    p.add_argument("--code", required=True, help="fingerprint of the code the stage can reach")
    p.add_argument("--output", required=True, type=Path, help="manifest to write, last and atomically")
    p.add_argument("--state", required=True, type=Path, help="scratch directory for large files")
    p.add_argument("--experiment", required=True)
    p.add_argument("--tracking", default="sqlite:///mlflow.db", help="MLflow store")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    p.add_argument("--inputs", nargs="*", default=[], metavar="NAME=PATH", help="parent manifests")
    return p


def run(stage: str, slice_type: type[S], body: Callable[[S, Context], StageResult]) -> None:
    """Run `body` between argument parsing and the manifest; exits 2 with one line on a user error."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    args = parser(stage).parse_args()
    die_with_parent()
    os.environ.setdefault("OMP_NUM_THREADS", str(args.threads))
    try:
        paths = _input_paths(args.inputs)
        parents = {name: sha256_file(path) for name, path in sorted(paths.items()) if path.is_file()}
        part = _read_slice(slice_type, args.slice)
        context = Context(
            output=args.output,
            state=args.state,
            inputs={name: read_manifest(path) for name, path in paths.items()},
            tracking_uri=os.environ.get("MLFLOW_TRACKING_URI", args.tracking),
            experiment=args.experiment,
            threads=args.threads,
            device=args.device,
            code=args.code,
        )
        origin = git_state(ROOT)
        result = body(part, context)
        manifest = Manifest(
            stage=stage,
            slice=part.model_dump(mode="json"),
            code=args.code,
            parents=parents,
            files=result.files,
            metadata=result.metadata,
            run_id=result.run_id,
        )
        write_manifest(args.output, manifest)
        write_json(args.state / ORIGINS / f"{sha256_file(args.output)}.json", {"stage": stage, **origin})
    except DamagedFile as error:
        print(f"{stage}: {error.set_aside()}", file=sys.stderr)
        sys.exit(2)
    except UserError as error:
        print(f"{stage}: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        where = error.filename or args.state
        print(
            f"{stage}: {where}: {error.strerror}. Free space or set permissions there, then start the workflow again.",
            file=sys.stderr,
        )
        sys.exit(2)


def _input_paths(pairs: list[str]) -> dict[str, Path]:
    for pair in pairs:
        if not all(pair.partition("=")):
            raise ConfigError(f"--inputs: {pair!r}; allowed: NAME=PATH, such as store=results/smoke/data/pretrain.json")
    return {name: Path(path) for name, _, path in (pair.partition("=") for pair in pairs)}


def _read_slice(kind: type[S], text: str) -> S:
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        lines = [f"--slice: {'.'.join(map(str, e['loc'])) or 'all of it'}: {e['msg']}" for e in error.errors()]
        raise ConfigError("\n".join(lines)) from error
