"""The configuration: one typed, frozen tree, read from YAML and checked before anything runs. Free of torch."""
