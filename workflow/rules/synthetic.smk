"""Relation composition: examples, one run per task, model, learning rate and seed, and Figures 3 to 5 (paper D).

A run checkpoints at each validation in the state directory, so a killed one goes on from there.
"""

from iha.studies.relations import shapes
from iha.studies.relations.folders import run_name

RELATION_RUNS = (
    {
        f"{task}/{run_name(*key)}": (task, *key)
        for task, *key in shapes.runs(CFG.synthetic)
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

STUDY_INPUTS.update(RELATION_INPUTS)
for task in RELATION_TASKS:
    register(
        "synthetic_data",
        RELATION_INPUTS[f"synthetic_data:{task}"],
        shapes.data_slice(CFG.synthetic, task),
    )
for run, key in RELATION_RUNS.items():
    register(
        "synthetic_train",
        RELATION_INPUTS[f"synthetic_run:{run}"],
        shapes.train_slice(CFG.synthetic, *key),
        {"data": RELATION_INPUTS[f"synthetic_data:{key[0]}"]},
    )
if CFG.synthetic:
    register(
        "synthetic_report",
        f"{OUT}/synthetic/report/report.json",
        shapes.report_slice(CFG.scale, CFG.synthetic),
        RELATION_INPUTS,
    )


wildcard_constraints:
    task="[a-z0-9_]+",
    run="[a-z0-9_]+-lr[^/]+-seed[0-9]+",


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
        slice=lambda w: dag.dump(shapes.data_slice(CFG.synthetic, w.task)),
        code=code("synthetic_data"),
    message:
        "Make relation composition data: {wildcards.task}"
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
            shapes.train_slice(CFG.synthetic, *RELATION_RUNS[f"{w.task}/{w.run}"])
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
        manifest=f"{OUT}/synthetic/report/report.json",
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
            dag.dump(shapes.report_slice(CFG.scale, CFG.synthetic))
            if CFG.synthetic
            else ""
        ),
        code=code("synthetic_report"),
    message:
        "Write the report on relation composition"
    shell:
        command("synthetic_report")
