"""RULER items, and every suite on every checkpoint it is meant for."""


rule ruler:
    input:
        tokenizer=f"{OUT}/data/tokenizer.json",
        items_=f"{OUT}/data/items.json",
    output:
        manifest=f"{OUT}/ruler/{{length}}.json",
    log:
        f"{OUT}/logs/ruler-{{length}}.log",
    benchmark:
        f"{OUT}/benchmarks/ruler-{{length}}.tsv"
    resources:
        mem_mb=2000,
        runtime=120,
    params:
        inputs=named,
        slice=lambda w: dag.dump(dag.ruler_slice(CFG, int(w.length))),
        code=code("ruler"),
    message:
        "Make RULER items of {wildcards.length} tokens"
    shell:
        command("ruler")


rule evaluate:
    input:
        unpack(eval_inputs),
    output:
        manifest=eval_manifest("{suite}", "{model}"),
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
        slice=lambda w: dag.dump(dag.eval_slice(CFG, w.suite, w.model)),
        code=lambda w: code("evaluate", w.variant),
    message:
        "Evaluate {wildcards.variant}, seed {wildcards.seed}: {wildcards.suite}, {wildcards.model} model"
    shell:
        command("evaluate")
