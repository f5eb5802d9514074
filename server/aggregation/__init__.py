"""From the releases of several silos to one: sums, sums weighed by precision, unions of sets."""
