"""The silo's side of the exchange: the sealed node, its channel, joining, uploads."""
