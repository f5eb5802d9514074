"""Messages between silo and coordinator: domain types, their bytes, and decoding that never fails in a surprising way.

Every `decode` takes any bytes at all and gives a valid value or one `WireError`, in time and memory bounded by the
limits in `parsing`.
"""
