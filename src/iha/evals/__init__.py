"""Evaluation: items, answers, verdicts, scores."""
