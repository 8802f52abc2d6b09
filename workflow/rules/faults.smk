"""The rehearsal of faults: small runs killed, signalled and starved on this machine."""


rule faults:
    output:
        manifest=f"{OUT}/faults.json",
    log:
        f"{OUT}/logs/faults.log",
    benchmark:
        f"{OUT}/benchmarks/faults.tsv"
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        inputs="",
        slice=dag.dump(dag.faults_slice()),
        code=code_fingerprint(*dag.fault_modules()),
    message:
        "Rehearse faults on this machine"
    shell:
        command("faults")
