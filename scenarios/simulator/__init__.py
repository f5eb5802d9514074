"""Many silos on one machine: splitting a dataset, setting up silos, and the engines that run the real apps on them."""
