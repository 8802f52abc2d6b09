"""The paper's theorems in float64, and what gradient descent finds of them."""

STUDY_INPUTS["theory"] = f"{OUT}/theory.json"
register("theory", f"{OUT}/theory.json", dag.theory_slice())
if CFG.separation:
    register(
        "separation",
        f"{OUT}/separation/separation.json",
        dag.separation_slice(CFG),
    )


rule theory:
    output:
        manifest=f"{OUT}/theory.json",
    log:
        f"{OUT}/logs/theory.log",
    benchmark:
        f"{OUT}/benchmarks/theory.tsv"
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        inputs="",
        slice=dag.dump(dag.theory_slice()),
        code=code("theory"),
    message:
        "Try the paper's theorems"
    shell:
        command("theory")


# Points are kept in the state directory one by one, so a killed job goes on from there.
rule separation:
    output:
        manifest=f"{OUT}/separation/separation.json",
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
        slice=dag.dump(dag.separation_slice(CFG)) if CFG.separation else "",
        code=code("separation"),
    message:
        "Learn the separation of the theorems"
    shell:
        command("separation")
