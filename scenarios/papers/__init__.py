"""The papers' tables beside our own rows."""
