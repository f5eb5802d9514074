"""The silo's budget: a ledger whose entries are a hash hash_chain."""
