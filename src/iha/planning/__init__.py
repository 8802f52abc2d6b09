"""What the Snakefile imports to plan the workflow: config slices, the DAG, FLOP ledger, preflight. Free of torch."""
