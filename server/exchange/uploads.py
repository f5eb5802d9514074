"""Uploads on disk: one partial file per silo and request, which grows chunk by chunk and survives both ends.

A payload is in the store, synced and indexed, before anybody is told that it arrived. A partial file is not synced at
every chunk: what a power cut could do to it, the SHA-256 at the end notices, and the payload is sent again.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from dpdd.common.errors import IntegrityError, WireError
from dpdd.common.wire.exchange import Manifest, Piece, check_chunk, checked_data
from dpdd.common.wire.release import StreamHash, inspect_signed
from dpdd.server.exchange.board import Board

AT_ONCE = 8
"""So many uploads write at a time; the others wait at their first chunk, which bounds the server's memory."""

BEHIND = 32
SYNC_EVERY = 1 << 23


class Uploads:
    """The partial files of one run."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._slots = threading.BoundedSemaphore(AT_ONCE)
        self._lock = threading.Lock()
        self._going: dict[Path, tuple[threading.Lock, Callable[[], None]]] = {}
        self._writing: dict[Upload, Callable[[], None]] = {}

    def received(self, manifest: Manifest, silo: str) -> tuple[int, bool]:
        """How much of a payload is here, and whether it is stored for good."""
        if self._stored(manifest, silo):
            return manifest.size, True
        path = self._path(manifest, silo)
        size = path.stat().st_size if path.exists() else 0
        return (size if size <= manifest.size else 0), False

    @contextmanager
    def open(self, manifest: Manifest, silo: str, cancel: Callable[[], None]) -> Iterator[Upload | None]:
        """An upload to go on with; None when the payload is stored already.

        A silo that lost its connection comes back before the server has noticed: the newcomer cancels the other.
        """
        if self._stored(manifest, silo):
            yield None
            return
        path = self._path(manifest, silo)
        with self._lock:
            before = self._going.get(path)
            mine = threading.Lock()
            mine.acquire()
            self._going[path] = (mine, cancel)
        try:
            if before is not None:
                before[1]()
                if not before[0].acquire(timeout=30.0):
                    raise IntegrityError("another upload of this payload does not end; try again")
            for other in self._board.partial.glob(f"{_prefix(silo, manifest.request_id)}.*"):
                if other != path:
                    other.unlink(missing_ok=True)  # one partial per request: a silo cannot fill the disk with them
            with self._slots, Upload(path, manifest, silo, self._board) as upload:
                self._writing[upload] = cancel
                try:
                    yield upload
                finally:
                    del self._writing[upload]
        finally:
            with self._lock:
                if self._going.get(path, (None, None))[0] is mine:
                    del self._going[path]
            mine.release()

    def cancel_idle(self, seconds: float) -> None:
        """End uploads that have sent nothing for so long: they keep others waiting."""
        for upload, cancel in list(self._writing.items()):
            if time.monotonic() - upload.last > seconds:
                cancel()

    def _stored(self, manifest: Manifest, silo: str) -> bool:
        digest = self._board.digest(manifest.request_id, silo)
        if digest is not None and digest != manifest.sha256:
            raise IntegrityError(f"silo {silo} sent a second, different release for one request; the first one stays")
        return digest is not None

    def _path(self, manifest: Manifest, silo: str) -> Path:
        return self._board.partial / f"{_prefix(silo, manifest.request_id)}.{manifest.sha256}"


class Upload:
    """One payload on its way; `add` chunks, then `finish`."""

    def __init__(self, path: Path, manifest: Manifest, silo: str, board: Board) -> None:
        self._path, self._manifest, self._silo, self._board = path, manifest, silo, board
        self._file = path.open("ab+", buffering=0)
        self._digest = StreamHash()
        self.last = time.monotonic()
        self.received = self._read_back()
        self._writer, self._unsynced = ThreadPoolExecutor(1, thread_name_prefix="upload"), 0
        self._behind: deque[Future[None]] = deque()
        self._damaged = False

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.shutdown()
        self._file.close()

    def add(self, piece: Piece) -> None:
        """Take the next chunk; WireError or IntegrityError when it (or one before) is not the next one, or damaged.

        Checksum, writing and hashing happen beside receiving, a few chunks behind.
        """
        try:
            check_chunk(piece, self._manifest, self.received)
        except WireError:
            self._drain()  # what was wrong with an earlier chunk comes first
            raise
        self.received += len(piece.data)
        self.last = time.monotonic()
        self._behind.append(self._writer.submit(self._write, piece))
        while len(self._behind) > BEHIND:
            self._behind.popleft().result()

    def _drain(self) -> None:
        while self._behind:
            self._behind.popleft().result()

    def _write(self, piece: Piece) -> None:
        if self._damaged:
            return
        self._damaged = True
        data = checked_data(piece)
        if self._file.write(data) != len(data):
            raise OSError("the coordinator's disk took only a part of a chunk")
        self._damaged = False
        self._digest.update(data)
        self._unsynced += len(data)
        if self._unsynced >= SYNC_EVERY:  # so that the last one, which everybody waits for, is short
            os.fdatasync(self._file.fileno())
            self._unsynced = 0

    def finish(self, release_key: bytes) -> None:
        """Check the whole payload, and move it into the store."""
        self._drain()
        if self.received < self._manifest.size:
            raise WireError(
                f"the upload ended after {self.received} of {self._manifest.size} bytes; it can go on from there"
            )
        try:
            if self._digest.hexdigest() != self._manifest.sha256:
                raise IntegrityError("the payload does not have the SHA-256 in its manifest; it is sent from the start")
            os.fsync(self._file.fileno())
            stated = inspect_signed(self._path, release_key, self._digest.signed)
            if stated.silo != self._silo:
                raise IntegrityError(f"a release by silo {stated.silo}, sent by silo {self._silo}")
            if stated.request_id != self._manifest.request_id:
                raise IntegrityError(f"silo {self._silo} sent a release for another request")
        except (WireError, IntegrityError):
            self._path.unlink(missing_ok=True)
            raise
        self._board.adopt(self._path, self._manifest.sha256, self._manifest.request_id, self._silo)

    def _read_back(self) -> int:
        """Hash what an earlier connection left; start over when it is too much."""
        size = 0
        self._file.seek(0)
        while piece := self._file.read(1 << 20):
            self._digest.update(memoryview(piece))
            size += len(piece)
        if size > self._manifest.size:
            self._file.truncate(0)
            self._digest = StreamHash()
            return 0
        return size


def _prefix(silo: str, request_id: str) -> str:
    return f"{silo}.{request_id}"
