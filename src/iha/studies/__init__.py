"""Studies beside the language models: theory, separation, relation composition. The core imports none of them."""
