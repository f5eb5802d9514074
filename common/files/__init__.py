"""Files: written atomically, and read as untrusted input."""
