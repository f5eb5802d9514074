"""The streams of connected silos: requests as they come, on the event loop, with no thread for a stream that waits.

Whatever a stream has to do it does when its event is set: something was asked, the run changed, it was replaced by a
newer one, its silo was revoked, the server stops. A few threads, for all streams together, look requests up and sign.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field

from dpdd.common.errors import DpddError
from dpdd.common.wire.exchange import sign_request
from dpdd.server.transport.calls import Call, Context, Superseded
from dpdd.server.transport.coordinator import Coordinator
from dpdd.server.transport.current_run import CurrentRun
from dpdd.server.transport.event_loop import Threads, event_loop
from dpdd.server.transport.request_queue import RequestQueue, RunEnded

log = logging.getLogger("dpdd.exchange")

STREAM_THREADS = 4


@dataclass(eq=False)
class _Stream:
    call: Call
    news: asyncio.Event = field(default_factory=asyncio.Event)
    writing: bool = False
    why: DpddError | None = None
    """What ends it."""

    def end(self, why: DpddError) -> None:
        self.why = self.why or why
        self.news.set()
        if self.writing:  # to a silo that may never read
            self.call.cancel()


@dataclass
class _Sent:
    """What a stream has brought of one run."""

    queue: RequestQueue
    requests: set[str] = field(default_factory=set)
    rehearsals: set[bytes] = field(default_factory=set)


@dataclass(frozen=True)
class _Letter:
    """What is to be sent next: a request or, with a `nonce`, a dry round of it."""

    request_id: str
    envelope: bytes
    nonce: bytes = b""


class Streams:
    """One per connected silo. All but `wake` and `check_all` is for the event loop."""

    def __init__(self, coordinator: Coordinator, queue: RequestQueue | None) -> None:
        self._coordinator = coordinator
        self._threads = Threads(STREAM_THREADS, "streams")
        self._streams: dict[str, _Stream] = {}
        self._stopping = False
        self.current = CurrentRun(queue, self.wake)

    def wake(self) -> None:
        """Make all streams look up; from any thread."""
        event_loop().call_soon_threadsafe(self._wake)

    def check_all(self) -> None:
        """End the streams of silos that were revoked, or whose certificate ended; called every now and then."""
        open_streams = list(self._streams.values())
        valid = self._coordinator.registry.valid() if open_streams else set()
        for stream in open_streams:
            if stream.call.fingerprint not in valid:
                try:
                    stream.call.check()  # which says why
                except DpddError as error:
                    event_loop().call_soon_threadsafe(stream.end, error)

    def stop(self) -> None:
        """End all, and take no new ones."""
        self._stopping = True
        self._wake()

    def close(self) -> None:
        """Let go of the threads."""
        self._threads.close()

    async def serve(self, call: Call, context: Context) -> None:
        """Bring a silo what it is asked, until its stream ends."""
        stream = _Stream(call)
        older = self._streams.get(call.silo)
        self._streams[call.silo] = stream  # before the silo knows: whoever connects after that replaces it
        if older is not None:
            older.end(Superseded(f"silo {call.silo} has connected a second time; one node runs for a silo"))
        try:
            await context.send_initial_metadata(())
            await self._send(stream, context)
        finally:
            if self._streams.get(call.silo) is stream:
                del self._streams[call.silo]

    async def _send(self, stream: _Stream, context: Context) -> None:
        sent: _Sent | None = None
        while not self._stopping:
            stream.news.clear()
            if stream.why is not None:
                raise stream.why
            queue = self.current.now
            if sent is not None and queue is not sent.queue and sent.queue.owes(stream.call.silo):
                return  # so that it forgets what it has not decided on: nobody waits for that now
            if queue is None:
                sent = None
            else:
                sent = sent if sent is not None and sent.queue is queue else _Sent(queue)
                with suppress(RunEnded):
                    await self._send_open(sent, stream, context)
            if not self._stopping:
                await stream.news.wait()

    async def _send_open(self, sent: _Sent, stream: _Stream, context: Context) -> None:
        """What is open in a run and was not sent; RunEnded at its end."""
        silo = stream.call.silo
        while (letter := await self._threads(self._next, sent, stream.call)) and not stream.why:
            if self._stopping or self.current.now is not sent.queue:
                return
            await self._write(letter.envelope, stream, context)
            if letter.nonce:
                sent.rehearsals.add(letter.nonce)
                log.info("a dry round of request %s went to silo %s", letter.request_id[:12], silo)
            else:
                sent.requests.add(letter.request_id)
                await self._threads(sent.queue.note, letter.request_id, silo, "delivered")
                log.info("request %s went to silo %s", letter.request_id[:12], silo)

    async def _write(self, envelope: bytes, stream: _Stream, context: Context) -> None:
        stream.writing = True
        try:
            await context.write(envelope)
        except asyncio.CancelledError:
            if stream.why is not None:
                raise stream.why from None
            raise
        finally:
            stream.writing = False

    def _next(self, sent: _Sent, call: Call) -> _Letter | None:
        """The next that a silo has to get; dry rounds first."""
        queue, key = sent.queue, self._coordinator.request_key
        for rehearsal in queue.rehearsals_for(call.silo):
            if rehearsal.nonce not in sent.rehearsals:
                call.check()
                envelope = sign_request(rehearsal.request, key, rehearsal.nonce)
                return _Letter(rehearsal.request_id, envelope, rehearsal.nonce)
        for row in queue.open_for(call.silo):
            if row.request_id not in sent.requests or row.state == "asked":  # or asked once more
                call.check()
                return _Letter(row.request_id, sign_request(queue.request(row.request_id), key))
        return None

    def _wake(self) -> None:
        for stream in self._streams.values():
            stream.news.set()
