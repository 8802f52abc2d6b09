"""Pretraining at matched FLOPs, context extension, supervised fine-tuning.

Checkpoints live in the state directory, never in `output`: Snakemake deletes declared outputs before a restart.
"""


rule pretrain:
    input:
        unpack(inputs("pretrain")),
    output:
        manifest=manifest("pretrain"),
    log:
        f"{OUT}/logs/pretrain-{{variant}}-seed{{seed}}.log",
    benchmark:
        f"{OUT}/benchmarks/pretrain-{{variant}}-seed{{seed}}.tsv"
    threads: CFG.runtime.threads
    resources:
        mem_mb=4000,
        runtime=1440,
        nodes=1,
        tasks_per_node=1,
    params:
        inputs=named,
        slice=slice_of("pretrain"),
        code=code_of("pretrain"),
    message:
        "Pretrain {wildcards.variant}, seed {wildcards.seed}"
    shell:
        command("pretrain")


rule extend:
    input:
        unpack(inputs("extend")),
    output:
        manifest=manifest("extend"),
    log:
        f"{OUT}/logs/extend-{{variant}}-seed{{seed}}.log",
    benchmark:
        f"{OUT}/benchmarks/extend-{{variant}}-seed{{seed}}.tsv"
    threads: CFG.runtime.threads
    resources:
        mem_mb=6000,
        runtime=1440,
        nodes=1,
        tasks_per_node=1,
    params:
        inputs=named,
        slice=slice_of("extend"),
        code=code_of("extend"),
    message:
        "Extend the context of {wildcards.variant}, seed {wildcards.seed}"
    shell:
        command("extend")


rule sft:
    input:
        unpack(inputs("sft")),
    output:
        manifest=manifest("sft"),
    log:
        f"{OUT}/logs/sft-{{variant}}-seed{{seed}}.log",
    benchmark:
        f"{OUT}/benchmarks/sft-{{variant}}-seed{{seed}}.tsv"
    threads: CFG.runtime.threads
    resources:
        mem_mb=4000,
        runtime=1440,
        nodes=1,
        tasks_per_node=1,
    params:
        inputs=named,
        slice=slice_of("sft"),
        code=code_of("sft"),
    message:
        "Fine-tune {wildcards.variant}, seed {wildcards.seed}"
    shell:
        command("sft")
