"""The wire format between silo and coordinator: domain types, their protobuf encoding, and decoding of untrusted bytes.

Every `decode` takes any bytes at all and gives a valid value or one `WireError`, in time and memory bounded by the
limits in `parsing`.
"""
