"""The sub-commands of `dpdd-client`: `dpdd.client.cli` names them and their options, the modules here run them."""
