"""Public models."""
