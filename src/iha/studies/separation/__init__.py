"""A learned test of the separation: what gradient descent finds with h heads where the theory says what h heads can."""
