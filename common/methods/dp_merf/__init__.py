"""DP-MERF: the public half."""
