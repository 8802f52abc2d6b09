"""Key-value recall: window, mixing and interleaving apart, at equal compute."""
