"""The silo's budget: a ledger whose entries are a hash chain."""
