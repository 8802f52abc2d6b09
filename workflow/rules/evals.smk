"""RULER items, and every suite on every checkpoint it is meant for."""


rule ruler:
    input:
        unpack(inputs("ruler")),
    output:
        manifest=manifest("ruler"),
    log:
        f"{OUT}/logs/ruler-{{length}}.log",
    benchmark:
        f"{OUT}/benchmarks/ruler-{{length}}.tsv"
    resources:
        mem_mb=2000,
        runtime=120,
    params:
        inputs=named,
        slice=slice_of("ruler"),
        code=code_of("ruler"),
    message:
        "Make RULER items of {wildcards.length} tokens"
    shell:
        command("ruler")


rule evaluate:
    input:
        unpack(inputs("evaluate")),
    output:
        manifest=manifest("evaluate"),
    log:
        f"{OUT}/logs/evaluate-{{variant}}-seed{{seed}}-{{suite}}-{{model}}.log",
    benchmark:
        f"{OUT}/benchmarks/evaluate-{{variant}}-seed{{seed}}-{{suite}}-{{model}}.tsv"
    threads: CFG.runtime.threads
    resources:
        mem_mb=6000,
        runtime=1440,
    params:
        inputs=named,
        slice=slice_of("evaluate"),
        code=code_of("evaluate"),
    message:
        "Evaluate {wildcards.variant}, seed {wildcards.seed}: {wildcards.suite}, {wildcards.model} model"
    shell:
        command("evaluate")
