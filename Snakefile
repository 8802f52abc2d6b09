"""The whole experiment, from tokens to tables. `snakemake --cores all` runs configs/smoke.yaml; see README.md."""

from snakemake.utils import min_version

min_version("9.9")


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evals.smk"
include: "workflow/rules/report.smk"


localrules:
    all,
    flops,
    tracking,


rule all:
    default_target: True
    input:
        f"{OUT}/report/report.json",
        f"{OUT}/tracking.json",
        # asked for by name, so that a deleted one is made again (SNK-07)
        list(REPORT_INPUTS.values()),
