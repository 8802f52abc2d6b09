"""Manifests, code fingerprints, and what surrounds a stage while it runs. Free of torch."""
