"""The silo's side: private records and the mechanisms that may touch them."""
