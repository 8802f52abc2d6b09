"""The paper's tables and figures with our numbers next to the paper's, and one page to read."""

REPORT = JOBS[manifest("report")]
REPORT.inputs.update(STUDY_INPUTS)


rule report:
    input:
        lambda w: list(inputs("report")(w).values()),
    output:
        report(
            f"{OUT}/report/report.html",
            caption="../report/page.rst",
            category="The page",
            labels={"result": "everything on one page"},
        ),
        report(
            f"{OUT}/report/compare.md",
            caption="../report/compare.rst",
            category="Tables",
            labels={"result": "each variant against the reference"},
        ),
        report(
            f"{OUT}/report/claims.md",
            caption="../report/claims.rst",
            category="Claims",
            labels={"result": "the paper's claims, tested"},
        ),
        report(
            f"{OUT}/report/table1.md",
            caption="../report/table1.rst",
            category="Tables",
            labels={"result": "Table 1, after fine-tuning"},
        ),
        report(
            f"{OUT}/report/table2.md",
            caption="../report/table2.rst",
            category="Tables",
            labels={"result": "Table 2, after pretraining"},
        ),
        report(
            f"{OUT}/report/ruler.md",
            caption="../report/ruler.rst",
            category="Tables",
            labels={"result": "RULER, the numbers of Figure 2"},
        ),
        report(
            f"{OUT}/report/flops.md",
            caption="../report/flops.rst",
            category="Tables",
            labels={"result": "FLOP ledger"},
        ),
        report(
            f"{OUT}/report/training.md",
            caption="../report/losses.rst",
            category="Tables",
            labels={"result": "where training ended"},
        ),
        report(
            f"{OUT}/report/loss.png",
            caption="../report/loss.rst",
            category="Figures",
            labels={"result": "pretraining loss against FLOPs"},
        ),
        manifest=manifest("report"),
    log:
        f"{OUT}/logs/report.log",
    benchmark:
        f"{OUT}/benchmarks/report.tsv"
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        inputs=" ".join(f"{name}={path}" for name, path in REPORT.inputs.items()),
        slice=REPORT.slice,
        code=code("report"),
    message:
        "Write tables, figures and the page"
    shell:
        command("report")
