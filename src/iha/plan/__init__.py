"""What a run will cost, from the ledger and stated efficiencies, and what it did cost. Free of torch."""
