"""The silo's privacy budget: an append-only ledger whose entries form a signed hash chain."""
