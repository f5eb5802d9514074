"""DP-CDA: class-wise random mixing (the public half)."""
