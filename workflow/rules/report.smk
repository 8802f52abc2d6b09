"""The paper's tables and figures, ours beside the paper's, and one page to read."""

REPORT_INPUTS = {
    "flops": f"{OUT}/flops.json",
    "items": f"{OUT}/data/items.json",
    "tokenizer": f"{OUT}/data/tokenizer.json",
    "theory": f"{OUT}/theory.json",
    **{f"data:{split}": f"{OUT}/data/{split}.json" for split in SPLITS},
    **{
        f"contamination:{split}": f"{OUT}/contamination/{split}.json"
        for split in SPLITS
    },
    **{f"ruler:{n}": f"{OUT}/ruler/{n}.json" for n in dag.ruler_lengths(CFG)},
    **{
        f"train:{variant}:{seed}:{stage}": run_manifest(stage, variant, seed)
        for variant in VARIANTS
        for seed in SEEDS
        for stage in SPLITS
    },
    **{
        f"eval:{variant}:{seed}:{suite.name}:{suite.model}": eval_manifest(
            suite.name, suite.model, variant, seed
        )
        for variant in VARIANTS
        for seed in SEEDS
        for suite in CFG.evals.suites
    },
    **RELATION_INPUTS,
}


rule report:
    input:
        list(REPORT_INPUTS.values()),
    output:
        report(
            f"{OUT}/report/table1.md",
            caption="../report/table1.rst",
            category="Tables",
        ),
        report(
            f"{OUT}/report/table2.md",
            caption="../report/table2.rst",
            category="Tables",
        ),
        report(
            f"{OUT}/report/figure2.png",
            caption="../report/figure2.rst",
            category="Figures",
        ),
        report(
            f"{OUT}/report/flops.md", caption="../report/flops.rst", category="Tables"
        ),
        report(
            f"{OUT}/report/report.html",
            caption="../report/page.rst",
            category="Report",
        ),
        manifest=f"{OUT}/report/report.json",
    log:
        f"{OUT}/logs/report.log",
    benchmark:
        f"{OUT}/benchmarks/report.tsv"
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        inputs=" ".join(f"{name}={path}" for name, path in REPORT_INPUTS.items()),
        slice=dag.dump(dag.report_slice(CFG)),
        code=code("report"),
    shell:
        command("report")
