"""From the releases of several silos to one: sums (plain, by precision, robust), unions of sets; who is implausible."""
