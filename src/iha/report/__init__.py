"""The paper's tables and figures from manifests, our numbers next to the paper's. Free of torch and MLflow."""
