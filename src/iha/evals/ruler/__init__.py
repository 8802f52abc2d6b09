"""RULER: 13 long-context tasks, generated within an exact token budget, and their scores [spec 11.1].

Templates, counts and budgets are those of NVIDIA/RULER's synthetic.yaml (v1); the generator is our own: each item has
a random stream of its own, so it does not depend on which tasks or items were made before it.
"""

from iha.evals.ruler.items import prompt, read_items
from iha.evals.ruler.scoring import score

__all__ = ["prompt", "read_items", "score"]
