"""One run: its scenario, the requests, the store, and the pipeline that drives it."""
