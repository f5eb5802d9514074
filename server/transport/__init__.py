"""The coordinator's side of the exchange: authority and registry, the gRPC service, and a Flower grid on top of it.

Two ports, because gRPC's Python server either requires a client certificate or does not ask for one: `Enrolment` (TLS,
no client certificate, one method that wants a one-time token) and `Exchange` (mutual TLS; every method looks the
certificate up and takes the silo's name from there, never from a message).
"""
