"""Studies: theory, separation and relation composition. They import the core; the core imports none of them."""
