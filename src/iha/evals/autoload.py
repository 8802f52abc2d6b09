"""Makes `iha` a model of lm-eval's own command line.

lm-eval looks up models in a table that only imported modules can add to, and imports no plug-ins. What it imports is
torch, which calls the entry points of its group `torch.backends`: this one adds a line to the table if lm-eval is what
is running, and does nothing anywhere else. TORCH_DEVICE_BACKEND_AUTOLOAD=0 turns it off.
"""

import sys
from importlib import import_module

TARGET = "iha.evals.lm:IhaLM"


def register() -> None:
    """Add the adapter to lm-eval's table of models, unimported; never raises, since it would break `import torch`."""
    if "lm_eval" not in sys.modules:
        return
    try:
        import_module("lm_eval.models")  # lm-eval fills its own table only while nothing stands in it
        from lm_eval.api.registry import model_registry

        if "iha" not in model_registry:
            model_registry.register("iha", target=TARGET)
    except Exception as error:
        print(f"iha: not registered with lm-eval ({error})", file=sys.stderr)
