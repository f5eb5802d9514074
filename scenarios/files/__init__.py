"""The shipped scenarios, as TOML files."""
