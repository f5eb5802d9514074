"""Resumable upload of a finished release: from the outbox file, in chunks, from the byte that the coordinator lacks."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path

import grpc

from dpdd.common.errors import IntegrityError
from dpdd.common.wire.exchange import Manifest, parts
from dpdd.common.wire.parsing import parse
from dpdd.v1 import transfer_pb2

STATUS_TIMEOUT = 60.0


def manifest_of(path: Path, request_id: str, sha256: str | None = None) -> Manifest:
    """What is about to be sent; `sha256` where it is known, as the ledger does of every release."""
    if sha256 is None:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return Manifest(sha256, path.stat().st_size, request_id)


def upload(
    channel: grpc.Channel,
    path: Path,
    manifest: Manifest,
    begin: Callable[[int], None],
    sent: Callable[[int], None] = lambda _bytes: None,
) -> None:
    """Send what the coordinator lacks of a release, until it stored all; grpc.RpcError when the connection fails.

    `begin` learns from which byte, and `sent` how many bytes are on their way, again and again.
    """
    ask_status = channel.unary_unary("/dpdd.v1.Exchange/Status")
    reply = ask_status(manifest.to_wire().SerializeToString(), timeout=STATUS_TIMEOUT)
    status = parse(transfer_pb2.TransferStatus, reply)
    if status.complete:
        return
    begin(status.received)
    ready = threading.Event()
    sending = _sending(manifest, path.open("rb", buffering=0), status.received, ready, sent)
    call = channel.stream_unary("/dpdd.v1.Exchange/Upload").future(sending)
    try:
        call.initial_metadata()  # comes when the coordinator has room: until then nothing fills its memory
    finally:
        ready.set()
    done = parse(transfer_pb2.TransferStatus, call.result())
    if not done.complete or done.payload_sha256.hex() != manifest.sha256:
        raise IntegrityError("the coordinator acknowledged something else than was sent")


def _sending(
    manifest: Manifest, file: FileIO, offset: int, ready: threading.Event, sent: Callable[[int], None]
) -> Iterator[bytes]:
    """Closes the file itself: gRPC's thread may still be reading when the call has failed."""
    with file:
        messages = parts(manifest, file, offset)
        yield next(messages)
        ready.wait()
        for message in messages:
            yield message
            sent(file.tell())
