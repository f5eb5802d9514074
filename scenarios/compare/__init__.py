"""`dpdd-sim compare`: scenarios × ε × silos × partitions × seeds, run cell by cell, to one page."""
