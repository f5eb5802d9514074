"""The calls by which a silo hears what the coordinator remembers of it: its newest ledger entry, and its releases.

Whose they are is what the certificate says; no call names another silo.
"""

from __future__ import annotations

from dpdd.common.wire.exchange import CHUNK
from dpdd.common.wire.parsing import check, parse
from dpdd.server.transport.calls import Call
from dpdd.server.transport.ledger_positions import LedgerPositions
from dpdd.v1 import exchange_pb2, transfer_pb2

_MOST = 1 << 12


class SiloMemory:
    """Answers such calls."""

    def __init__(self, positions: LedgerPositions) -> None:
        self._positions = positions

    def position(self, data: bytes, call: Call) -> bytes:
        """The newest entry of the silo's ledger that a release named."""
        parse(exchange_pb2.PositionQuery, data, most_bytes=_MOST)
        known = self._positions.highest(call.silo)
        if known is None:
            return exchange_pb2.LedgerPosition().SerializeToString()
        return exchange_pb2.LedgerPosition(sequence=known.sequence, entry=known.entry).SerializeToString()

    def stored(self, data: bytes, call: Call) -> bytes:
        """A page of the silo's releases."""
        query = parse(exchange_pb2.StoredQuery, data, most_bytes=_MOST)
        check(len(query.after) in (0, 32), "a release is named by the 32 bytes of a SHA-256")
        page = self._positions.stored(call.silo, query.after)
        return exchange_pb2.StoredReleases(releases=[each.to_wire() for each in page]).SerializeToString()

    def fetch(self, data: bytes, call: Call) -> bytes:
        """A chunk of one of them."""
        query = parse(exchange_pb2.FetchQuery, data, most_bytes=_MOST)
        check(len(query.sha256) == 32, "a release is named by the 32 bytes of a SHA-256")
        check(query.offset < 2**62, "a release is not that long")
        piece = self._positions.piece(call.silo, query.sha256, query.offset, CHUNK)
        return transfer_pb2.Chunk(
            payload_sha256=query.sha256, offset=query.offset, data=piece, size=len(piece)
        ).SerializeToString()
