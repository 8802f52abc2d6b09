"""Tokenizer, token stores, evaluation items, tracking store, FLOP ledger."""

from iha.evals.mirror import local_files


# No job waits for the store (an `ancient` input would hide changed params from Snakemake); it runs first.
rule tracking:
    input:
        unpack(inputs("tracking")),
    output:
        manifest=manifest("tracking"),
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
        slice=slice_of("tracking"),
        code=code_of("tracking"),
    message:
        "Prepare the tracking store"
    shell:
        command("tracking")


rule flops:
    input:
        unpack(inputs("flops")),
    output:
        manifest=manifest("flops"),
    log:
        f"{OUT}/logs/flops.log",
    benchmark:
        f"{OUT}/benchmarks/flops.tsv"
    resources:
        mem_mb=500,
        runtime=10,
    params:
        inputs="",
        slice=slice_of("flops"),
        code=code_of("flops"),
    message:
        "Price every variant"
    shell:
        command("flops")


rule tokenizer:
    input:
        unpack(inputs("tokenizer")),
    output:
        manifest=manifest("tokenizer"),
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
        slice=slice_of("tokenizer"),
        code=code_of("tokenizer"),
    message:
        "Make the tokenizer"
    shell:
        command("tokenizer")


rule tokenise:
    input:
        unpack(inputs("tokenise")),
    output:
        manifest=manifest("tokenise"),
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
        slice=slice_of("tokenise"),
        code=code_of("tokenise"),
    message:
        "Tokenise the {wildcards.split} text"
    shell:
        command("tokenise")


# Files of the user, no manifests: a change of one collects the items again.
rule items:
    input:
        unpack(inputs("items")),
        local_files(dag.items_slice(CFG)),
    output:
        manifest=manifest("items"),
    log:
        f"{OUT}/logs/items.log",
    benchmark:
        f"{OUT}/benchmarks/items.tsv"
    resources:
        mem_mb=2000,
        runtime=60,
    params:
        inputs="",
        slice=slice_of("items"),
        code=code_of("items"),
    message:
        "Collect the evaluation items"
    shell:
        command("items")


rule contamination:
    input:
        unpack(inputs("contamination")),
    output:
        manifest=manifest("contamination"),
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
        slice=slice_of("contamination"),
        code=code_of("contamination"),
    message:
        "Look for evaluation items in the {wildcards.split} text"
    shell:
        command("contamination")
