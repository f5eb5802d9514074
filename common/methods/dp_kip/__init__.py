"""Kernel inducing points: kernels, and support sets whose kernel ridge regression fits private data."""
