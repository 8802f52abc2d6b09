"""Tokenizer, token stores, evaluation items, tracking store, FLOP ledger."""

from iha.evals.mirror import local_files


# No job waits for the store (an `ancient` input would hide changed params from Snakemake); it is made first.
rule tracking:
    output:
        manifest=f"{OUT}/tracking.json",
    log:
        f"{OUT}/logs/tracking.log",
    benchmark:
        f"{OUT}/benchmarks/tracking.tsv"
    priority: 100
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        inputs="",
        slice=dag.dump(dag.tracking_slice(CFG)),
        code=code("tracking"),
    message:
        "Prepare the tracking store"
    shell:
        command("tracking")


rule flops:
    output:
        manifest=f"{OUT}/flops.json",
    log:
        f"{OUT}/logs/flops.log",
    benchmark:
        f"{OUT}/benchmarks/flops.tsv"
    resources:
        mem_mb=500,
        runtime=10,
    params:
        inputs="",
        slice=dag.dump(dag.ledger_slice(CFG)),
        code=code("flops"),
    message:
        "Price every variant"
    shell:
        command("flops")


rule tokenizer:
    output:
        manifest=f"{OUT}/data/tokenizer.json",
    log:
        f"{OUT}/logs/tokenizer.log",
    benchmark:
        f"{OUT}/benchmarks/tokenizer.tsv"
    threads: CFG.runtime.workers
    resources:
        mem_mb=4000,
        runtime=120,
    params:
        inputs="",
        slice=dag.dump(dag.tokenizer_slice(CFG)),
        code=code("tokenizer"),
    message:
        "Make the tokenizer"
    shell:
        command("tokenizer")


rule tokenise:
    input:
        tokenizer=f"{OUT}/data/tokenizer.json",
    output:
        manifest=f"{OUT}/data/{{split}}.json",
    log:
        f"{OUT}/logs/tokenise-{{split}}.log",
    benchmark:
        f"{OUT}/benchmarks/tokenise-{{split}}.tsv"
    threads: CFG.runtime.workers
    resources:
        mem_mb=8000,
        runtime=1440,
    params:
        inputs=named,
        slice=lambda w: dag.dump(dag.tokenise_slice(CFG, w.split)),
        code=code("tokenise"),
    message:
        "Tokenise the {wildcards.split} text"
    shell:
        command("tokenise")


# Files of the user, no manifests: a change of one makes the items again.
rule items:
    input:
        local_files(dag.items_slice(CFG)),
    output:
        manifest=f"{OUT}/data/items.json",
    log:
        f"{OUT}/logs/items.log",
    benchmark:
        f"{OUT}/benchmarks/items.tsv"
    resources:
        mem_mb=2000,
        runtime=60,
    params:
        inputs="",
        slice=dag.dump(dag.items_slice(CFG)),
        code=code("items"),
    message:
        "Collect the evaluation items"
    shell:
        command("items")


rule contamination:
    input:
        store=f"{OUT}/data/{{split}}.json",
        tokenizer=f"{OUT}/data/tokenizer.json",
        items_=f"{OUT}/data/items.json",
    output:
        manifest=f"{OUT}/contamination/{{split}}.json",
    log:
        f"{OUT}/logs/contamination-{{split}}.log",
    benchmark:
        f"{OUT}/benchmarks/contamination-{{split}}.tsv"
    threads: CFG.runtime.workers
    resources:
        mem_mb=8000,
        runtime=1440,
    params:
        inputs=named,
        slice=lambda w: dag.dump(dag.contamination_slice(w.split)),
        code=code("contamination"),
    message:
        "Look for evaluation items in the {wildcards.split} text"
    shell:
        command("contamination")
