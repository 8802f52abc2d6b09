"""Import every metrics file below a folder into MLflow: `python -m iha.tracking state/smoke`.

The workflow does this when it ends, `make ui` before it starts MLflow's page. It can be repeated at any time: only
what the store does not have is sent. At the end every variant and seed gets its summary run, and the experiment's run
gets the config and the report.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from iha.artifacts.manifest import read_manifest, sha256_file
from iha.errors import DataError, UserError
from iha.tracking.metrics import RunInfo, read_run
from iha.tracking.mlflow import Experiment, RunImport, check_uri, explain
from iha.tracking.summary import SUMMARY, write_summaries
from iha.variants.display import variant_colours

log = logging.getLogger("iha.tracking")


def find_runs(state: Path) -> dict[str, list[tuple[RunInfo, Path]]]:
    """Metrics files below a folder, by experiment."""
    found: dict[str, list[tuple[RunInfo, Path]]] = {}
    for path in sorted(state.rglob("metrics*.jsonl")):
        info = read_run(path)
        if info is not None:
            found.setdefault(info.experiment, []).append((info, path))
    return found


def import_runs(state: Path, uri: str) -> tuple[int, dict[str, tuple[str, list[str]]]]:
    """Import the metrics files below `state`; creates the store if it does not exist.

    Returns:
        Number of files with something new, and for each experiment its id and the ids of its summaries.

    Raises:
        ConfigError: the URI names no store.
    """
    check_uri(uri)
    n_new, found = 0, {}
    for name, runs in find_runs(state).items():
        experiment, config = Experiment(uri, name), read_config(state, name)
        colours = variant_colours([v["name"] for v in config.get("variants", [])])
        for info, path in runs:
            tags = {"mlflow.runColor": colours[info.variant]} if info.variant in colours else {}
            n_new += RunImport(experiment, path, tags).advance() > 0
        results = Path(config["runtime"]["results_dir"]) / name if "runtime" in config else Path("results") / name
        summaries = write_summaries(experiment, runs, colours, parameters(results / "flops.json"))
        _log_artifacts(experiment, _config_file(state, name), results / "report")
        experiment.close_parents()
        found[name] = (experiment.id, summaries)
    return n_new, found


def _config_file(state: Path, experiment: str) -> Path:
    """The config that the workflow wrote when it started: in the experiment's state folder."""
    own = state / "config.json"
    return own if own.exists() and state.name == experiment else state / experiment / "config.json"


def read_config(state: Path, experiment: str) -> dict[str, Any]:
    """Config of an experiment as the workflow wrote it when it started; empty if there is none."""
    try:
        return dict(json.loads(_config_file(state, experiment).read_text()))
    except (OSError, ValueError):
        return {}


def parameters(ledger: Path) -> dict[str, int]:
    """Number of parameters of each variant in the FLOP ledger; empty without one."""
    try:
        variants = read_manifest(ledger).metadata.get("variants", {})
    except DataError:
        return {}
    return {name: int(entry["params"]["total"]) for name, entry in variants.items()}


def _log_artifacts(experiment: Experiment, config: Path, report: Path) -> None:
    """Put config and report into the experiment's run if they changed."""
    client, run_id = experiment.client, experiment.parent()
    tags = client.get_run(run_id).data.tags
    for tag, mark, folder in (("iha.config", config, None), ("iha.report", report / "report.json", report)):
        if not mark.is_file() or tags.get(tag) == (digest := sha256_file(mark)):
            continue
        try:
            client.log_artifacts(run_id, folder, "report") if folder else client.log_artifact(run_id, mark)
            client.set_tag(run_id, tag, digest)
        except Exception as error:  # a server may refuse artifacts; metrics do not depend on them
            log.warning("%s: not stored as an artifact (%s)", mark, error)


def links(experiment: str, summaries: Sequence[str], address: str) -> list[str]:
    """Addresses in MLflow's page: the summaries as a table and as charts."""
    runs = f"runs={quote(json.dumps(summaries))}&experiments={quote(json.dumps([experiment]))}"
    chosen = quote(f"tags.stage = '{SUMMARY}'")
    charts = f"searchFilter={chosen}&compareRunsMode=CHART"
    return [f"{address}/#/compare-runs?{runs}", f"{address}/#/experiments/{experiment}/runs?{charts}"]


def main() -> None:
    """Command line."""
    p = argparse.ArgumentParser(prog="python -m iha.tracking", description=__doc__)
    p.add_argument("state", type=Path, help="folder to search for metrics files, such as state/smoke")
    p.add_argument("--tracking", default="sqlite:///mlflow.db", help="MLflow store; MLFLOW_TRACKING_URI overrides it")
    p.add_argument("--page", metavar="URL", help="address of MLflow's page: print links to the comparison")
    args = p.parse_args()
    logging.basicConfig(level=logging.WARNING)
    uri = os.environ.get("MLFLOW_TRACKING_URI", args.tracking)
    try:
        n_new, experiments = import_runs(args.state, uri)
    except UserError as error:
        sys.exit(f"tracking: {error}")
    except Exception as error:
        sys.exit(f"tracking: {explain(uri, error)}")
    print(f"MLflow: {n_new} runs imported")
    for name, (experiment, summaries) in experiments.items():
        if args.page and summaries:
            table, charts = links(experiment, summaries, args.page)
            print(f"{name}: variants as a table   {table}\n{name}: variants as charts  {charts}")


if __name__ == "__main__":
    main()
