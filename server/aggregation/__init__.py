"""From the releases of several silos to one: sums (plain, or weighed by precision), and unions of distilled sets."""
