"""Every number of a finished run that a refactoring must not change, as JSON; or what differs between two.

    python benchmarks/golden.py results/smoke state/smoke > before.json
    python benchmarks/golden.py --compare before.json after.json

Reads manifests and state files as plain JSON and imports nothing of the project, so it reads runs of older versions.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path


def metadata(path: Path) -> dict:
    """Metadata of a manifest, under its present or its former key."""
    manifest = json.loads(path.read_text())
    return manifest.get("metadata", manifest.get("facts", {})) | {"files": manifest["files"]}


def numbers(results: Path, state: Path) -> Iterator[tuple[str, object]]:
    """Name and value of everything that is compared, in a fixed order."""
    for part in (_flops_and_data, _runs, _evaluations, _studies):
        yield from part(results, state)


def _flops_and_data(results: Path, state: Path) -> Iterator[tuple[str, object]]:
    for variant, row in metadata(results / "flops.json")["variants"].items():
        for key in ("params", "steps", "tokens", "train_flops", "flops_per_token", "mismatch", "cache_bytes"):
            yield f"flops/{variant}/{key}", row[key]
    for path in sorted((results / "data").glob("*.json")):
        for name, entry in metadata(path)["files"].items():
            if not name.endswith(".index"):
                yield f"data/{path.stem}/{name}", entry["sha256"]
    for path in sorted((results / "ruler").glob("*.json")):
        for task, row in metadata(path)["tasks"].items():
            yield f"ruler/{path.stem}/{task}", row["sha256"]


def _runs(results: Path, state: Path) -> Iterator[tuple[str, object]]:
    for path in sorted((results / "runs").rglob("*.json")):
        run = path.relative_to(results / "runs").with_suffix("")
        yield f"runs/{run}/weights", metadata(path)["files"]["weights"]["sha256"]
        yield f"runs/{run}/losses", list(losses(state / "runs" / run / "metrics.jsonl"))


def _evaluations(results: Path, state: Path) -> Iterator[tuple[str, object]]:
    for path in sorted((results / "evals").rglob("*.json")):
        suite = path.relative_to(results / "evals").with_suffix("")
        for row in metadata(path)["rows"]:
            name = "/".join(str(row[k]) for k in ("task", "metric", "k", "length"))
            yield f"evals/{suite}/{name}", row["value"]
        for item in answers(state / metadata(path)["files"]["samples"]["path"]):
            yield f"answers/{suite}/{item[0]}", item[1]


def _studies(results: Path, state: Path) -> Iterator[tuple[str, object]]:
    """Theory and relation composition, wherever the version at hand stores their manifests."""
    for path in sorted(results.rglob("*.json")):
        if "report" in path.parts or path.is_relative_to(results / "runs"):
            continue
        found = json.loads(path.read_text())
        content = found.get("metadata", found.get("facts")) or {}
        for row in content.get("statements", ()):
            yield f"theory/{row['name']}", row["printed_error"]
        if content.get("history"):
            yield f"relations/{path.stem}", [row["train_loss"] for row in content["history"]]


def losses(path: Path) -> Iterator[float]:
    """Training losses in the order of steps; of a repeated step, the last."""
    by_step = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        for key, value in (row.get("values") or row.get("metrics") or row).items():
            if key == "loss":
                by_step[row.get("step")] = value
    yield from (by_step[step] for step in sorted(by_step))


def answers(path: Path) -> Iterator[tuple[str, str]]:
    """Name and digest of each evaluated item: texts, extracted answers and verdicts."""
    with gzip.open(path, "rt") as rows:
        for line in rows:
            row = json.loads(line)
            kept = [[a.get("text"), a.get("extracted"), a.get("correct")] for a in row.get("answers", [])]
            digest = hashlib.sha256(json.dumps(kept).encode()).hexdigest()[:16]
            yield f"{row['task']}/{row['length']}/{row['item']}", digest


def equal(a: object, b: object) -> bool:
    """Equality of two values; numbers within 1e-6 of each other."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, int | float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)
    return a == b


def compare(before: dict, after: dict) -> dict[str, object]:
    """Counts per kind of number, and the names of those that differ."""
    names = sorted(before.keys() | after.keys())
    differing = [n for n in names if n not in before or n not in after or not equal(before[n], after[n])]
    kinds = {n.partition("/")[0]: 0 for n in names}
    for name in names:
        kinds[name.partition("/")[0]] += 1
    return {"compared": kinds, "bit_equal": sum(before.get(n) == after.get(n) for n in names), "differing": differing}


def main() -> None:
    """Print one JSON object."""
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("paths", type=Path, nargs=2, metavar="PATH", help="results and state folder, or two JSON files")
    p.add_argument("--compare", action="store_true", help="the two paths are files that this script has written")
    args = p.parse_args()
    if args.compare:
        before, after = (json.loads(path.read_text()) for path in args.paths)
        print(json.dumps(compare(before, after), indent=1))
    else:
        print(json.dumps(dict(numbers(*args.paths)), indent=1))


if __name__ == "__main__":
    main()
