"""Baselines: private classifiers at the same budget, without distillation."""
