"""One training loop, three recipes: pretraining, context extension, supervised fine-tuning (spec 4.2-4.4)."""
