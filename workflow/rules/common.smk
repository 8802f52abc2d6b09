"""Config, paths, the jobs, and the one command line that every rule shares."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path


from iha.planning import dag, preflight, reruns
from iha.config.load import load_config
from iha.config.schema import MODEL_STAGES, SPLITS
from iha.errors import ConfigError, UserError
from iha.artifacts.locks import claim, release_stale_locks
from iha.artifacts.manifest import write_json
from iha.artifacts.fingerprint import code_fingerprint

# Presets never merge: smoke is read only when no other config was named.
CONFIG_FILES = workflow.configfiles or [
    Path(workflow.basedir) / "configs" / "smoke.yaml"
]
if len(CONFIG_FILES) > 1:
    sys.exit(
        f"--configfile: {len(CONFIG_FILES)} files given, allowed: one (presets do not merge)"
    )
try:
    CFG = load_config(Path(CONFIG_FILES[0]), workflow.config_settings.config_args)
    if workflow.is_main_process:
        preflight.check(CFG, str(CONFIG_FILES[0]))
        preflight.check_profiles(sys.argv, os.environ)
except ConfigError as error:
    sys.exit(str(error))  # one message, no traceback

OUT = dag.results_folder(CFG)
STATE = f"{CFG.runtime.state_dir}/{CFG.experiment}"

# In the environment, not in the command: moving scratch or the tracking server reruns nothing. Resources of a profile
# may depend on the size of the run: nodes: "16 if '$IHA_SCALE' == 'paper' else 1".
os.environ.update(
    IHA_PYTHON=sys.executable,
    IHA_RUN=f"--state {STATE} --experiment {CFG.experiment} "
    f"--tracking {CFG.runtime.tracking_uri} --device {CFG.runtime.device}",
    IHA_SCALE=CFG.scale,
    PYTHONUTF8="1",  # texts are UTF-8 whatever the locale
)

VARIANTS = [v.name for v in CFG.variants]
SEEDS = list(CFG.seeds)


wildcard_constraints:
    variant="|".join(VARIANTS),
    seed="|".join(map(str, SEEDS)),
    split="|".join(SPLITS),
    model="|".join(MODEL_STAGES),
    suite="[a-z0-9_]+",
    length="[0-9]+",


if workflow.is_main_process:
    release_stale_locks(Path(".snakemake"))


# The report prices the run from its complete configuration, which is no rerun key of the report.
onstart:
    claim(Path(".snakemake"))
    with suppress(OSError):  # the first stage reports what is wrong with the disk
        write_json(Path(STATE) / "config.json", CFG.model_dump(mode="json"))


# The head imports what stages did not send to MLflow themselves. If MLflow is down, the workflow continues.
def import_runs():
    subprocess.run(
        [sys.executable, "-m", "iha.tracking", STATE]
        + ["--tracking", CFG.runtime.tracking_uri],
        check=False,
    )


onsuccess:
    import_runs()


onerror:
    import_runs()


# Training stages may have several ranks; the launcher is not part of their code.
LAUNCH = (
    'exec "$IHA_PYTHON" -m iha.train.launch --nodes {resources.nodes} '
    "--tasks-per-node {resources.tasks_per_node} --threads {threads} -m"
)


def command(stage):
    """Shell line of a stage: its slice and code are rerun keys (params), where it runs is not."""
    start = LAUNCH if stage in SPLITS else 'exec "$IHA_PYTHON" -m'
    return (
        f"{start} {dag.entry_point(stage)} --output {{output.manifest}} --inputs {{params.inputs}} "
        "--threads {threads} $IHA_RUN --code {params.code} --slice {params.slice:q} > {log} 2>&1"
    )


# ---- the jobs: what iha.planning.dag knows of each, by its manifest -------------------------------------------------

JOBS = dag.jobs(CFG)
# Manifests of the studies that the report reads, by the name of the input.
STUDY_INPUTS = {}
# Fingerprints of the code, by its entry modules. The jobs that this process starts are given them: parsing all modules
# takes a second.
CODES = (
    {} if workflow.is_main_process else json.loads(os.environ.get("IHA_CODES", "{}"))
)


def register(stage, path, part, parents=None):
    """Add a job of a study to JOBS, so that its manifest is compared, too."""
    JOBS[path] = dag.Job(
        stage, path, dag.dump(part), dag.entry_modules(stage), parents or {}
    )


@cache
def fingerprint(*entries):
    return CODES.get(" ".join(entries)) or code_fingerprint(*entries)


def code(stage):
    """Fingerprint of the code that a stage without variants can reach."""
    return fingerprint(*dag.entry_modules(stage))


def manifest(stage):
    """Path of a stage's manifest, with its wildcards."""
    return f"{OUT}/{dag.MANIFESTS[stage]}"


def job(stage, wildcards):
    """The job of a stage with these wildcards."""
    return JOBS[manifest(stage).format(**dict(wildcards.items()))]


@cache
def rerun_outdated():
    """Force the jobs whose results no longer match, whatever Snakemake's own records in .snakemake say, or if lost.

    Called while the DAG is built, by the first input function: only then are the targets known, and forcing a job
    adds no further targets.
    """
    settings = workflow.dag_settings
    outdated = reruns.outdated(
        JOBS,
        lambda job: fingerprint(*job.entries),
        Path(STATE),
        set(settings.targets) - {"all"} or GOALS[CFG.goal],
        frozen="params" not in map(str, settings.rerun_triggers),
    )
    if outdated:
        print(reruns.summary(outdated), file=sys.stderr)
        workflow.dag.forcefiles.update(outdated)
    reruns.order_times(JOBS, outdated, Path(OUT, "benchmarks"))


def inputs(stage):
    """Input function: parent manifests by name (`items_`: Snakemake keeps the name `items` for itself)."""

    def by_name(wildcards):
        if workflow.is_main_process:
            rerun_outdated()
        return {
            "items_" if name == "items" else name: path
            for name, path in job(stage, wildcards).inputs.items()
        }

    return by_name


def named(wildcards, input):
    """Parent manifests as NAME=PATH."""
    return " ".join(f"{name.rstrip('_')}={path}" for name, path in input.items())


def slice_of(stage):
    """Params function: the stage's part of the configuration."""
    return lambda wildcards: job(stage, wildcards).slice


def code_of(stage):
    """Params function: fingerprint of the code that the job can reach."""
    return lambda wildcards: fingerprint(*job(stage, wildcards).entries)
