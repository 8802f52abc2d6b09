"""The paper's theorems as programs: each statement is tried on the project's own attention layers, in float64."""
