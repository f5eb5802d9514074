"""Uploads on disk: one partial file per silo and request, which grows chunk by chunk and survives both ends.

A payload is in the store, synced and indexed, before the silo is told that it arrived. A partial file is not synced at
every chunk: what a power cut could do to it, the SHA-256 at the end notices, and the payload is sent again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio

from dpdd.common.errors import DpddError, IntegrityError, WireError
from dpdd.common.methods.verification import check_release
from dpdd.common.wire.exchange import CHUNK, Manifest, Piece, check_chunk, read_part
from dpdd.common.wire.parsing import check
from dpdd.common.wire.release import StreamHash, inspect_signed
from dpdd.server.transport.calls import Busy, Call, Context, Gone
from dpdd.server.transport.event_loop import Threads
from dpdd.server.transport.limits import Pace
from dpdd.server.transport.registry import Registry, Revoked
from dpdd.server.transport.request_queue import RequestQueue

log = logging.getLogger("dpdd.exchange")

AT_ONCE = 8
"""So many large uploads write at a time; the others wait at their first chunk, which bounds the server's memory."""

MOST_UNHASHED = 8
SYNC_EVERY = 1 << 24

SMALL = CHUNK
"""Uploads of at most so much, as most are, have `AT_ONCE` places of their own: they never wait for large ones."""


@dataclass
class _Turn:
    """A silo's uploads: the one that holds the lock, and those that wait for it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    calls: list[Call] = field(default_factory=list)


@dataclass(frozen=True)
class _Writing:
    """The call of an upload that has a place, since when, and how much an earlier connection had brought."""

    call: Call
    began: float
    had: int


class Slow(Busy):
    """An upload that kept a place without filling it."""


class Uploads:
    """The partial files of the run that `queue` gives: the current one. An upload stays with the run it began in.

    Who waits, for a place or for a silo to send on, waits on the event loop; who has a place has a thread.
    """

    def __init__(
        self,
        queue: Callable[[], RequestQueue],
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue, self._pace, self._clock = queue, pace or Pace(), clock
        self._slots, self._small_slots = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(AT_ONCE)
        self._turns: dict[str, _Turn] = {}
        self._writing: dict[Upload, _Writing] = {}
        self._ended: dict[str, str] = {}
        self._threads = Threads(2 * AT_ONCE, "uploads")
        self._background = BackgroundWork()

    def close(self) -> None:
        """No more uploads."""
        self._threads.close()
        self._background.close()

    async def received(self, manifest: Manifest, call: Call) -> tuple[int, bool]:
        """How much of a payload is here, and whether it is stored for good. Ends an upload of this silo: who asks has
        lost its connection, and needs to know where that one really got to. Slow, once, when we ended it: a call that
        is ended while it waits for the silo cannot carry a reason."""
        async with self._turn(call):
            queue = self._queue()
            if await self._threads(_stored, queue, manifest, call.silo):
                return manifest.size, True
            if why := self._ended.pop(call.silo, None):
                raise Slow(why)
            path = _path(queue, manifest, call.silo)
            size = path.stat().st_size if path.exists() else 0
            return (size if size <= manifest.size else 0), False

    @asynccontextmanager
    async def open(self, manifest: Manifest, call: Call) -> AsyncIterator[Upload | None]:
        """An upload to go on with; None when the payload is stored already."""
        async with self._turn(call):
            queue = self._queue()
            if await self._threads(_stored, queue, manifest, call.silo):
                yield None
                return
            async with self._small_slots if manifest.size <= SMALL else self._slots:
                upload = await self._threads(self._begin, manifest, call, queue)
                try:
                    self._ended.pop(call.silo, None)
                    self._writing[upload] = _Writing(call, self._clock(), upload.received)
                    yield upload
                finally:
                    self._writing.pop(upload, None)
                    await self._threads(upload.close)

    async def receive(self, upload: Upload, context: Context, call: Call, registry: Registry) -> None:
        """Take chunks until the payload is stored; a silo that is revoked meanwhile leaves nothing."""
        try:
            reading = asyncio.ensure_future(context.read())
            try:
                while isinstance(part := await reading, bytes):
                    reading = asyncio.ensure_future(context.read())  # while this one is written
                    await self._threads(upload.take, part)
            finally:
                reading.cancel()
            await self._threads(self._end, upload, call, registry)
        except (asyncio.CancelledError, Gone, Revoked, grpc.aio.BaseError):
            if call.silo in await self._threads(registry.revoked):
                upload.discard()
            raise

    def end_stalled(self, slow: float) -> None:
        """End uploads of silos that were revoked, those that are slower than the pace,
        and those of which not even a chunk came in `slow` seconds."""
        for upload, writing in list(self._writing.items()):
            call = writing.call
            try:
                call.check()
                broken = self._pace.broken_by(self._clock() - writing.began, upload.received - writing.had)
                check(broken is None, broken or "")
                check(time.monotonic() - upload.last < slow, f"less than {CHUNK} bytes came in {slow:g} s")
            except DpddError as error:
                log.warning("ended an upload by silo %s at byte %d: %s", call.silo, upload.received, error)
                if isinstance(error, WireError):  # else it hung up, or hears at its next call that it is revoked
                    self._ended[call.silo] = f"the last upload by silo {call.silo} was ended, and can go on: {error}"
                call.cancel()

    @asynccontextmanager
    async def _turn(self, call: Call) -> AsyncIterator[None]:
        """One upload per silo. A silo that lost its connection comes back before the server has noticed: the newcomer
        ends those before it, and waits until they have put away what had arrived."""
        turn = self._turns.setdefault(call.silo, _Turn())
        for other in turn.calls:
            other.cancel()
        turn.calls.append(call)
        try:
            async with turn.lock:
                yield
        finally:
            turn.calls.remove(call)

    def _begin(self, manifest: Manifest, call: Call, queue: RequestQueue) -> Upload:
        call.check()  # it may have waited for long
        path = _path(queue, manifest, call.silo)
        for other in queue.partial.glob(f"{_prefix(call.silo, manifest.request_id)}.*"):
            if other != path:
                other.unlink(missing_ok=True)  # one partial per request: a silo cannot fill the disk with them
        return Upload(path, manifest, call.silo, queue, self._background)

    def _end(self, upload: Upload, call: Call, registry: Registry) -> None:
        call.check()
        upload.finish(registry.release_key(call.silo))


class BackgroundWork:
    """For all uploads, beside receiving: one thread hashes, faster than a network sends, and one syncs to disk."""

    def __init__(self) -> None:
        self.hashing = ThreadPoolExecutor(1, thread_name_prefix="hashing")
        self.syncing = ThreadPoolExecutor(1, thread_name_prefix="syncing")

    def close(self) -> None:
        """Take nothing more on."""
        self.hashing.shutdown(wait=False)
        self.syncing.shutdown(wait=False)


class Upload:
    """One payload on its way; `take` chunks, then `finish`. One thread at a time."""

    def __init__(
        self, path: Path, manifest: Manifest, silo: str, queue: RequestQueue, background: BackgroundWork
    ) -> None:
        self._path, self._manifest, self._silo, self._queue, self._background = path, manifest, silo, queue, background
        self._file = path.open("ab+", buffering=0)
        self._digest = StreamHash()
        self.received = self._noted = self._read_back()
        self.last = time.monotonic()
        self._behind: deque[Future[None]] = deque()
        self._unsynced, self._synced = 0, Future[None]()
        self._synced.set_result(None)

    def close(self) -> None:
        """Put away what came."""
        wait((*self._behind, self._synced))
        self._file.close()

    def take(self, part: bytes) -> None:
        """Take the next chunk; WireError when it is not the next one. Hashing and syncing go on beside receiving."""
        piece = read_part(part)
        if not isinstance(piece, Piece):
            raise WireError("an upload has one manifest")
        check_chunk(piece, self._manifest, self.received)
        if self._file.write(piece.data) != len(piece.data):
            raise OSError("the coordinator's disk took only a part of a chunk")
        self.received += len(piece.data)
        if self.received - self._noted >= CHUNK:
            self._noted, self.last = self.received, time.monotonic()
        self._behind.append(self._background.hashing.submit(self._digest.update, piece.data))
        while len(self._behind) > MOST_UNHASHED:
            self._behind.popleft().result()
        self._unsynced += len(piece.data)
        if self._unsynced >= SYNC_EVERY:  # now, so that the last time, for which the silo waits, is short
            self._synced.result()
            self._synced, self._unsynced = self._background.syncing.submit(self._sync), 0

    def _sync(self) -> None:
        """Make what was written durable, and let go of the memory that it takes meanwhile."""
        try:
            os.fdatasync(self._file.fileno())
        except OSError:  # the kernel reports what it lost once, and then calls it clean: none of it is to be trusted
            self.discard()
            raise
        os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def finish(self, release_key: bytes) -> None:
        """Check the whole payload, and move it into the store."""
        for done in (*self._behind, self._synced):
            done.result()
        if self.received < self._manifest.size:
            raise WireError(
                f"the upload ended after {self.received} of {self._manifest.size} bytes; it can go on from there"
            )
        try:
            if self._digest.hexdigest() != self._manifest.sha256:
                raise IntegrityError(
                    "the payload does not have the SHA-256 in its manifest: a chunk was altered, or another payload "
                    "announced; it is sent from the start"
                )
            self._sync()
            stated = inspect_signed(self._path, release_key, self._digest.signed)
            if stated.silo != self._silo:
                raise IntegrityError(f"a release by silo {stated.silo}, sent by silo {self._silo}")
            if stated.request_id != self._manifest.request_id:
                raise IntegrityError(f"silo {self._silo} sent a release for another request")
            try:
                check_release(stated, self._queue.expected(stated.request_id))
            except IntegrityError as error:  # signed by the silo itself: nothing that was lost on the way
                self._queue.reject(stated.request_id, self._silo, str(error))
                raise
        except (WireError, IntegrityError):
            self.discard()
            raise
        self._queue.adopt(self._path, self._manifest.sha256, self._manifest.request_id, self._silo)

    def discard(self) -> None:
        """Keep nothing of it."""
        self._path.unlink(missing_ok=True)

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


def _stored(queue: RequestQueue, manifest: Manifest, silo: str) -> bool:
    digest = queue.digest(manifest.request_id, silo)
    if digest is not None and digest != manifest.sha256:
        queue.second(manifest.request_id, silo)
        raise IntegrityError(f"silo {silo} sent a second, different release for one request; the first one stays")
    return digest is not None


def _path(queue: RequestQueue, manifest: Manifest, silo: str) -> Path:
    return queue.partial / f"{_prefix(silo, manifest.request_id)}.{manifest.sha256}"
