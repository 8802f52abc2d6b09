"""Config, paths and the one command line every rule shares."""

import os
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path


from iha.planning import dag
from iha.planning import preflight
from iha.config.load import load_config
from iha.errors import ConfigError
from iha.artifacts.locks import claim, release_stale_locks
from iha.artifacts.manifest import write_json
from iha.artifacts.fingerprint import code_fingerprint, load_summaries, save_summaries
from iha.config.schema import MODEL_STAGES, SPLITS

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
except ConfigError as error:
    sys.exit(str(error))  # one message, no traceback

OUT = f"{CFG.runtime.results_dir}/{CFG.experiment}"
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


# The report prices the run from its whole configuration, which is no rerun key of the report.
onstart:
    claim(Path(".snakemake"))
    with suppress(OSError):  # the first stage says what is wrong with the disk
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
        f"{start} iha.stages.{stage} --output {{output.manifest}} --inputs {{params.inputs}} "
        "--threads {threads} $IHA_RUN --code {params.code} --slice {params.slice:q} > {log} 2>&1"
    )


@cache
def code(stage, variant=None):
    """Fingerprint of the code that a stage (running a variant) can reach; the ledger reaches every variant's price."""
    if stage == "flops":
        return code_fingerprint(*dag.entry_modules(stage, CFG.variants, torch=False))
    return code_fingerprint(
        *dag.entry_modules(stage, (CFG.variant(variant),) if variant else ())
    )


# Parsing every module takes a second; what was learnt of one is kept by its content.
load_summaries(Path(".snakemake/iha-code.json"))
for stage in dag.STAGES:
    for name in VARIANTS if stage in dag.VARIANT_STAGES else [None]:
        code(stage, name)
save_summaries(Path(".snakemake/iha-code.json"))


def named(wildcards, input):
    """Parent manifests as NAME=PATH (`items_`: Snakemake keeps the name `items` for itself)."""
    return " ".join(f"{name.rstrip('_')}={path}" for name, path in input.items())


def run_manifest(stage, variant="{variant}", seed="{seed}"):
    """Manifest of a training stage."""
    return f"{OUT}/runs/{variant}/seed{seed}/{stage}.json"


def eval_manifest(suite, model, variant="{variant}", seed="{seed}"):
    """Manifest of a suite on one checkpoint."""
    return f"{OUT}/evals/{variant}/seed{seed}/{suite}.{model}.json"


def eval_inputs(w):
    """Checkpoint, tokenizer, items, the RULER lengths of the suite, and text to read along an extended context."""
    lengths = dag.suite_of(CFG, w.suite, w.model).lengths
    return {
        "model": run_manifest(MODEL_STAGES[w.model], w.variant, w.seed),
        "tokenizer": f"{OUT}/data/tokenizer.json",
        "items_": f"{OUT}/data/items.json",
        **{f"ruler_{n}": f"{OUT}/ruler/{n}.json" for n in lengths},
        **({"store": f"{OUT}/data/extend.json"} if w.model == "long" else {}),
    }
