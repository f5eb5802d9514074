"""Reproduction: the papers' tables beside our own rows."""
