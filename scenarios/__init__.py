"""Research on one machine: scenario files, the simulator, baselines, benchmarks, papers' tables, and shipped files."""
