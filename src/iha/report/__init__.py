"""From manifests to the paper's tables and figures, ours beside the paper's. Free of torch and MLflow."""
