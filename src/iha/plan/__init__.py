"""How `iha plan` prints the price of a run (`iha.planning.price`)."""
