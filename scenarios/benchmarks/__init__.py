"""How fast, and how exact, the parts are."""
