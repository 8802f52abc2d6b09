"""RULER items, and every suite on every checkpoint it is meant for."""


rule ruler:
    input:
        tokenizer=f"{OUT}/data/tokenizer.json",
        items_=f"{OUT}/data/items.json",
    output:
        f"{OUT}/ruler/{{length}}.json",
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
    shell:
        command("ruler")


def eval_inputs(w):
    """Checkpoint, tokenizer, items, and the RULER lengths of the suite."""
    lengths = dag.suite_of(CFG, w.suite, w.model).lengths
    return {
        "model": run_manifest(MODEL_STAGES[w.model], w.variant, w.seed),
        "tokenizer": f"{OUT}/data/tokenizer.json",
        "items_": f"{OUT}/data/items.json",
        **{f"ruler_{n}": f"{OUT}/ruler/{n}.json" for n in lengths},
    }


rule evaluate:
    input:
        unpack(eval_inputs),
    output:
        eval_manifest("{suite}", "{model}"),
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
    shell:
        command("evaluate")
