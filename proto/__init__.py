"""The wire contract: `dpdd/v1/*.proto`, and the code generated from it (importable as `dpdd.v1`)."""
