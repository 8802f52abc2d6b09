"""Relation composition (paper Appendix D, spec 6): data, models, training and results. Nothing here imports a stage."""
