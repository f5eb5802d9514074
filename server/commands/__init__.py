"""What the sub-commands of `dpdd-server` do; `dpdd.server.cli` has their options."""
