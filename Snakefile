"""The whole experiment, from tokens to tables. `snakemake --cores all` runs configs/smoke.yaml; see README.md."""

from snakemake.utils import min_version

min_version("9.9")


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evals.smk"
include: "workflow/rules/studies.smk"
include: "workflow/rules/report.smk"


localrules:
    all,
    flops,
    theory,
    tracking,


# Every file is asked for by name, so that a deleted one is written again. What no target needs is not.
GOALS = {
    "report": [
        *rules.report.output,
        manifest("tracking"),
        *REPORT.inputs.values(),
    ],
    "synthetic": [PAGES["relations"], *RELATION_INPUTS.values()],
    "separation": [PAGES["separation"]],
    "recall": [PAGES["recall"], *RECALL_INPUTS.values()],
}


if workflow.is_main_process:
    try:
        os.environ.update(
            IHA_CODES=json.dumps(
                {
                    " ".join(job.entries): fingerprint(*job.entries)
                    for job in JOBS.values()
                }
            )
        )
    except UserError as error:
        sys.exit(str(error))  # a syntax error in a module, with file and line


rule all:
    default_target: True
    input:
        GOALS[CFG.goal],
    message:
        "All done"
