"""Runs of a grid as a folder of results: `python -m iha.studies.relations.collect --into FOLDER`.

Holds manifests, tables and figures, no weights; made again from what is there, it is the same folder. A run that is
not over is taken from its last validation and shown as such.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from iha.artifacts.manifest import Manifest, read_manifest, write_json, write_manifest
from iha.config.load import load_config
from iha.config.schema import Config
from iha.config.studies import SyntheticConfig
from iha.errors import ConfigError, UserError
from iha.report.relation_claims import sentences
from iha.report.relation_section import DATA, RUN, captions, grid_of, relation_tables, write_relations
from iha.report.render import markdown, write_texts
from iha.studies.relations.folders import PROGRESS, data_manifest, run_folder, run_manifest, run_name
from iha.studies.relations.results import Grid
from iha.studies.relations.shapes import runs, train_slice
from iha.train.run import RECORD

HEAD = """# Relation composition (paper Appendix D, Figures 3 to 5)

Can a one-layer encoder tell every entry of R∘R (binary) or R∘R∘R (ternary) from the cells of a random Boolean relation
R? The paper says that IHA does so better than multi-head and 2-simplicial attention. This is what ran of `{config}`
on {devices}. A run ends by early stopping or at its budget; one that is not over stands for as far as it got.

Written by `python -m iha.studies.relations.collect --config {config} --into {folder}` from `manifests/`.

## Reading

{reading}

## Tables

{tables}
## Figures

{figures}

The same as data: [relations_runs.csv](relations_runs.csv) has a line per run,
[relations_curves.csv](relations_curves.csv) a line per validation, with epochs, FLOPs and CPU-seconds spent until then.
"""


def gather(config: SyntheticConfig, results: Path, state: Path) -> dict[str, Manifest]:
    """Manifests by name; an unfinished run is told by its progress file.

    Raises:
        DataError: a task has no examples yet.
    """
    found = {f"{DATA}{t.name}": read_manifest(data_manifest(results, t.name), "synthetic_data") for t in config.tasks}
    for key in runs(config):
        done, progress = run_manifest(results, *key), run_folder(state, *key) / PROGRESS
        name = f"{RUN}{key[0]}/{run_name(*key[1:])}"
        if done.exists():
            found[name] = read_manifest(done, "synthetic_train")
        elif progress.exists():
            part = train_slice(config, *key).model_dump(mode="json")
            facts, record = (json.loads(p.read_text()) for p in (progress, progress.with_name(RECORD)))
            found[name] = Manifest(stage="synthetic_train", slice=part, code=record["codes"][-1], metadata=facts)
    return found


def collect(config: Config, where: str, folder: Path) -> Grid:
    """Write the folder; returns what it shows.

    Raises:
        ConfigError: the configuration has no relation composition.
    """
    if config.synthetic is None:
        raise ConfigError(f"{where}: synthetic is null; allowed: a section, {{}} for the paper's values.")
    runtime = config.runtime
    results, state = (Path(d) / config.experiment for d in (runtime.results_dir, runtime.state_dir))
    found = gather(config.synthetic, results, state)
    for name, manifest in found.items():
        place = name.partition(":")[2]
        path = f"{place}.json" if name.startswith(RUN) else f"{place}/data.json"
        write_manifest(folder / "manifests" / path, manifest)
    grid = grid_of(config.synthetic, found)
    paths = write_relations(grid, config.scale, folder)
    write_json(folder / "config.json", config.synthetic.model_dump(mode="json"))
    drawn = [p.stem for p in paths if p.suffix == ".png"]
    devices = {str(m.facts["device"]) for name, m in found.items() if name.startswith(RUN)}
    text = HEAD.format(
        config=where,
        folder=folder.as_posix(),
        devices=" and ".join(sorted(devices)) or "no device yet",
        reading="\n".join(f"- {line}" for line in sentences(grid)),
        tables=markdown(relation_tables(grid, config.scale)),
        figures="\n\n".join(f"![{n.replace('figure', 'Figure ')}]({n}.png)\n\n{captions(grid)[n]}" for n in drawn),
    )
    write_texts(folder, {"README.md": text})
    return grid


def main(argv: list[str] | None = None) -> None:
    """Collect what is there; a user error is one message and exit status 2."""
    p = argparse.ArgumentParser(prog="python -m iha.studies.relations.collect", description=__doc__)
    p.add_argument("--config", type=Path, default=Path("configs/synthetic.yaml"), metavar="FILE")
    p.add_argument("--into", type=Path, default=Path("docs/results/synthetic"), metavar="FOLDER")
    args = p.parse_args(argv)
    try:
        grid = collect(load_config(args.config), args.config.as_posix(), args.into)
    except UserError as error:
        print(f"collect: {error}", file=sys.stderr)
        sys.exit(2)
    over = sum(o.stopped is not None for o in grid.outcomes)
    print(f"{args.into}: {len(grid.outcomes)} runs, {over} of them over")


if __name__ == "__main__":
    main()
