"""Studies: the paper's theorems in float64, what gradient descent finds of them, and relation composition (paper D).

Each study ends in a manifest OUT/NAME/NAME.json with tables and figures next to it; the report includes its fragment.
A run of relation composition checkpoints at each validation in the state directory, and so does the separation
after each point, so a killed job resumes.
"""

from dataclasses import replace

from iha.studies.recall import grid as recall
from iha.studies.relations import grid as relations
from iha.studies.separation.grid import SeparationSlice
from iha.studies.theory.statement import TheorySlice

RELATION_RUNS = (
    {
        f"{task}/{relations.run_name(*key)}": (task, *key)
        for task, *key in relations.runs(CFG.synthetic)
    }
    if CFG.synthetic
    else {}
)
RELATION_TASKS = [t.name for t in CFG.synthetic.tasks] if CFG.synthetic else []
RELATION_INPUTS = {
    **{
        f"synthetic_data:{task}": f"{OUT}/synthetic/{task}/data.json"
        for task in RELATION_TASKS
    },
    **{f"synthetic_run:{run}": f"{OUT}/synthetic/{run}.json" for run in RELATION_RUNS},
}
PAGES = {
    name: f"{OUT}/{name}/{name}.json"
    for name in ("theory", "relations", "separation", "recall")
}

register("theory", PAGES["theory"], TheorySlice())
STUDY_INPUTS["study_theory"] = PAGES["theory"]
if CFG.separation:
    SEPARATION = SeparationSlice(scale=CFG.scale, separation=CFG.separation)
    register("separation", PAGES["separation"], SEPARATION)
    STUDY_INPUTS["study_separation"] = PAGES["separation"]
for task in RELATION_TASKS:
    register(
        "synthetic_data",
        RELATION_INPUTS[f"synthetic_data:{task}"],
        relations.data_slice(CFG.synthetic, task),
    )
for run, key in RELATION_RUNS.items():
    register(
        "synthetic_train",
        RELATION_INPUTS[f"synthetic_run:{run}"],
        relations.train_slice(CFG.synthetic, *key),
        {"data": RELATION_INPUTS[f"synthetic_data:{key[0]}"]},
    )
if CFG.synthetic:
    register(
        "synthetic_report",
        PAGES["relations"],
        relations.report_slice(CFG.scale, CFG.synthetic),
        RELATION_INPUTS,
    )
    STUDY_INPUTS["study_relations"] = PAGES["relations"]

RECALL_RUNS = {recall.run_name(*key): key for key in recall.runs(CFG)}
RECALL_INPUTS = {run: f"{OUT}/recall/runs/{run}.json" for run in RECALL_RUNS}
for run, key in RECALL_RUNS.items():
    register("recall_train", RECALL_INPUTS[run], recall.recall_slice(CFG, *key))
    JOBS[RECALL_INPUTS[run]] = replace(
        JOBS[RECALL_INPUTS[run]],
        entries=dag.entry_modules("recall_train", (CFG.variant(key[0]),)),
    )
RECALL_PAGE = recall.RecallReportSlice(scale=CFG.scale, reference=CFG.reference)
if CFG.recall:
    register("recall", PAGES["recall"], RECALL_PAGE, RECALL_INPUTS)
    STUDY_INPUTS["study_recall"] = PAGES["recall"]


wildcard_constraints:
    task="[a-z0-9_]+",
    run="[a-z0-9_]+-lr[^/]+-seed[0-9]+",


rule theory:
    output:
        manifest=PAGES["theory"],
    log:
        f"{OUT}/logs/theory.log",
    benchmark:
        f"{OUT}/benchmarks/theory.tsv"
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        inputs="",
        slice=dag.dump(TheorySlice()),
        code=code("theory"),
    message:
        "Check the paper's theorems"
    shell:
        command("theory")


rule separation:
    output:
        manifest=PAGES["separation"],
    log:
        f"{OUT}/logs/separation.log",
    benchmark:
        f"{OUT}/benchmarks/separation.tsv"
    threads: CFG.runtime.threads
    resources:
        mem_mb=2000,
        runtime=1440,
    params:
        inputs="",
        slice=dag.dump(SEPARATION) if CFG.separation else "",
        code=code("separation"),
    message:
        "Learn the separation of the theorems"
    shell:
        command("separation")


rule synthetic_data:
    output:
        manifest=f"{OUT}/synthetic/{{task}}/data.json",
    log:
        f"{OUT}/logs/synthetic_data-{{task}}.log",
    benchmark:
        f"{OUT}/benchmarks/synthetic_data-{{task}}.tsv"
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        inputs="",
        slice=lambda w: dag.dump(relations.data_slice(CFG.synthetic, w.task)),
        code=code("synthetic_data"),
    message:
        "Generate relation composition data: {wildcards.task}"
    shell:
        command("synthetic_data")


rule synthetic_train:
    input:
        data=f"{OUT}/synthetic/{{task}}/data.json",
    output:
        manifest=f"{OUT}/synthetic/{{task}}/{{run}}.json",
    log:
        f"{OUT}/logs/synthetic_train-{{task}}-{{run}}.log",
    benchmark:
        f"{OUT}/benchmarks/synthetic_train-{{task}}-{{run}}.tsv"
    threads: CFG.runtime.threads
    resources:
        mem_mb=2000,
        runtime=1440,
    params:
        inputs=named,
        slice=lambda w: dag.dump(
            relations.train_slice(CFG.synthetic, *RELATION_RUNS[f"{w.task}/{w.run}"])
        ),
        code=code("synthetic_train"),
    message:
        "Train on relation composition: {wildcards.task}, {wildcards.run}"
    shell:
        command("synthetic_train")


rule synthetic_report:
    input:
        list(RELATION_INPUTS.values()),
    output:
        manifest=PAGES["relations"],
    log:
        f"{OUT}/logs/synthetic_report.log",
    benchmark:
        f"{OUT}/benchmarks/synthetic_report.tsv"
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        inputs=" ".join(f"{name}={path}" for name, path in RELATION_INPUTS.items()),
        slice=(
            dag.dump(relations.report_slice(CFG.scale, CFG.synthetic))
            if CFG.synthetic
            else ""
        ),
        code=code("synthetic_report"),
    message:
        "Write the page on relation composition"
    shell:
        command("synthetic_report")


rule recall_train:
    output:
        manifest=f"{OUT}/recall/runs/{{recall_run}}.json",
    log:
        f"{OUT}/logs/recall_train-{{recall_run}}.log",
    benchmark:
        f"{OUT}/benchmarks/recall_train-{{recall_run}}.tsv"
    wildcard_constraints:
        recall_run="[a-z0-9_]+-lr[^/]+",
    threads: CFG.runtime.threads
    resources:
        mem_mb=2000,
        runtime=1440,
    params:
        inputs="",
        slice=lambda w: dag.dump(recall.recall_slice(CFG, *RECALL_RUNS[w.recall_run])),
        code=lambda w: fingerprint(
            *dag.entry_modules(
                "recall_train", (CFG.variant(RECALL_RUNS[w.recall_run][0]),)
            )
        ),
    message:
        "Learn key-value recall: {wildcards.recall_run}"
    shell:
        command("recall_train")


rule recall:
    input:
        list(RECALL_INPUTS.values()),
    output:
        manifest=PAGES["recall"],
    log:
        f"{OUT}/logs/recall.log",
    benchmark:
        f"{OUT}/benchmarks/recall.tsv"
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        inputs=" ".join(f"{name}={path}" for name, path in RECALL_INPUTS.items()),
        slice=dag.dump(RECALL_PAGE),
        code=code("recall"),
    message:
        "Write the page on key-value recall"
    shell:
        command("recall")
