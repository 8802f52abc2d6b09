"""The rehearsal of faults: small runs that are killed, signalled, starved and lied to, and must end as if nothing was.

`scenarios` lists the faults, `run` tries them all and says what was seen, `lab` and `process` start the stages. The
stage `faults` runs it on the machine and file system of the experiment; the tests run the same scenarios.
"""
