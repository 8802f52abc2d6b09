"""The whole experiment, from tokens to tables. `snakemake --cores all` runs configs/smoke.yaml; see README.md."""

from snakemake.utils import min_version

min_version("9.9")


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evals.smk"
include: "workflow/rules/synthetic.smk"
include: "workflow/rules/report.smk"


localrules:
    all,
    flops,
    tracking,


rule all:
    default_target: True
    input:
        # inputs are asked for by name, so that a deleted one is made again (SNK-07)
        [
            f"{OUT}/report/report.json",
            f"{OUT}/tracking.json",
            *REPORT_INPUTS.values(),
        ]
        if CFG.goal == "report"
        else [f"{OUT}/synthetic/report/report.json", *RELATION_INPUTS.values()],
