"""Benchmarks of speed and of error, as commands of `dpdd-sim`."""
