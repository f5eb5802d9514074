"""What the coordinator has of this silo: the newest ledger entry that it saw, and the releases themselves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc

from dpdd.client.ledger.ledger import Ledger
from dpdd.client.ledger.position import Position
from dpdd.client.recover import unknown_release
from dpdd.client.silo import Silo
from dpdd.client.transport.channel import explain
from dpdd.common.errors import DpddError
from dpdd.common.wire.exchange import Manifest, Piece, check_chunk
from dpdd.common.wire.parsing import check, parse
from dpdd.v1 import exchange_pb2, transfer_pb2

_TIMEOUT = 60.0
_PATIENCE = 30


class StoredReleases:
    """A `dpdd.client.recover.Source` over a connection."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def position(self) -> Position | None:
        """The newest entry that the coordinator saw; None where no release states one, or it keeps no count."""
        try:
            reply = self._call("Position", exchange_pb2.PositionQuery().SerializeToString())
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:  # an older coordinator
                return None
            raise
        message = parse(exchange_pb2.LedgerPosition, reply)
        if not message.sequence:
            return None
        check(len(message.entry) == 32, "a ledger's entry is named by the 32 bytes of a SHA-256")
        check(message.sequence < 2**62, "a ledger with more than 2^62 entries")
        return Position(message.sequence, message.entry.hex())

    def stored(self) -> Iterator[Manifest]:
        """All releases of this silo, page by page."""
        after = b""
        while True:
            query = exchange_pb2.StoredQuery(after=after)
            page = parse(exchange_pb2.StoredReleases, self._call("Stored", query.SerializeToString())).releases
            if not page:
                return
            for message in page:
                check(message.sha256 > after, "a page of releases that is not in order")
                after = message.sha256
                yield Manifest.from_wire(message)

    def fetch(self, manifest: Manifest, path: Path) -> None:
        """Chunk by chunk into a new file."""
        offset = 0
        with path.open("xb") as file:
            while offset < manifest.size:
                query = exchange_pb2.FetchQuery(sha256=bytes.fromhex(manifest.sha256), offset=offset)
                chunk = parse(transfer_pb2.Chunk, self._call("Fetch", query.SerializeToString()))
                check_chunk(Piece(chunk, memoryview(chunk.data)), manifest, offset)
                file.write(chunk.data)
                offset += len(chunk.data)

    def _call(self, method: str, data: bytes) -> bytes:
        """One call, and again a little later where this silo has called too often."""
        for _ in range(_PATIENCE):
            try:
                reply: bytes = self._channel.unary_unary(f"/dpdd.v1.Exchange/{method}")(data, timeout=_TIMEOUT)
                return reply
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise
            time.sleep(1.0)
        raise DpddError("the coordinator is busy; try again later")


def hear_position(channel: grpc.Channel, silo: Silo) -> str:
    """Ask the coordinator how far it knows this silo's ledger, and remember it; a sentence when that is further."""
    source, memory = StoredReleases(channel), silo.coordinator_memory
    try:
        with closing(silo.ledger()) as ledger:
            memory.hear(source.position(), ledger, lambda: _shown(source, silo, ledger))
            memory.check(ledger)
            memory.check_claim(ledger)
    except DpddError as error:
        return str(error)
    return ""


def unshown_claim(silo: Silo) -> str:
    """A sentence when the coordinator claims, and does not show, that the ledger lacks entries."""
    try:
        with closing(silo.ledger()) as ledger:
            silo.coordinator_memory.check_claim(ledger)
    except DpddError as error:
        return str(error)
    return ""


def _shown(source: StoredReleases, silo: Silo, ledger: Ledger) -> Position | None:
    """The proof that the ledger lacks an entry: a release of this silo that it does not know."""
    try:
        return unknown_release(silo, source, ledger)
    except DpddError:  # what it shows proves nothing
        return None
    except grpc.RpcError as error:
        raise DpddError(f"the coordinator did not show its releases: {explain(error)}") from None
