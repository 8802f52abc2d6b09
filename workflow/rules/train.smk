"""Pretraining at matched FLOPs, context extension, supervised fine-tuning.

Checkpoints live in the state directory, never in `output`: Snakemake deletes declared outputs before a restart.
"""


rule pretrain:
    input:
        tokenizer=f"{OUT}/data/tokenizer.json",
        store=f"{OUT}/data/pretrain.json",
    output:
        manifest=run_manifest("pretrain"),
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
        slice=lambda w: dag.dump(
            dag.train_slice(CFG, "pretrain", w.variant, int(w.seed))
        ),
        code=lambda w: code("pretrain", w.variant),
    message:
        "Pretrain {wildcards.variant}, seed {wildcards.seed}"
    shell:
        command("pretrain")


rule extend:
    input:
        tokenizer=f"{OUT}/data/tokenizer.json",
        store=f"{OUT}/data/extend.json",
        parent=run_manifest("pretrain"),
    output:
        manifest=run_manifest("extend"),
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
        slice=lambda w: dag.dump(dag.train_slice(CFG, "extend", w.variant, int(w.seed))),
        code=lambda w: code("extend", w.variant),
    message:
        "Extend the context of {wildcards.variant}, seed {wildcards.seed}"
    shell:
        command("extend")


rule sft:
    input:
        tokenizer=f"{OUT}/data/tokenizer.json",
        store=f"{OUT}/data/sft.json",
        parent=run_manifest("pretrain"),
    output:
        manifest=run_manifest("sft"),
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
        slice=lambda w: dag.dump(dag.train_slice(CFG, "sft", w.variant, int(w.seed))),
        code=lambda w: code("sft", w.variant),
    message:
        "Fine-tune {wildcards.variant}, seed {wildcards.seed}"
    shell:
        command("sft")
