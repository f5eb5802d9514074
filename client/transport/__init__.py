"""The silo's side of the exchange: the node, its mutual-TLS channel, joining, uploads."""
