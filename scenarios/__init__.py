"""Simulated federations, and the small public dataset that is shipped with them."""
