"""Many silos on one machine: splitting a dataset, and the engines that run the real apps on it."""
