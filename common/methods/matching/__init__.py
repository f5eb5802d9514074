"""Matching (Dosser, NDPDC, PSG, DM): the public half."""
