"""DP-GENG: the public half."""
