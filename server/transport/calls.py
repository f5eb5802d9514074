"""Admission of calls, before anything of one is read: who calls, how many calls it has, how long we wait for it.

gRPC would read the message of a unary call before it tells us whose call it is. So all methods are served as streams: a
caller is known (by the certificate that TLS verified) and counted first, and has to say what it wants in
`FIRST_MESSAGE_SECONDS` seconds. A call that waits, for that or for anything else, takes no thread.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
import grpc.aio
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from dpdd.common.config import one_line
from dpdd.common.errors import ConfigError, DpddError, IntegrityError, WireError
from dpdd.server.transport.authority import common_name
from dpdd.server.transport.event_loop import Threads
from dpdd.server.transport.limits import CallRates
from dpdd.server.transport.registry import Expired, Registry, Revoked, TooOften, Unknown
from dpdd.server.transport.request_queue import NotPlanned

log = logging.getLogger("dpdd.exchange")

MOST_CALLS = 32
"""Of one silo at a time: two connections' worth. A node has three: its stream, a heartbeat, an upload or a refusal."""

FIRST_MESSAGE_SECONDS = 20.0

CALLS_A_SECOND, CALLS_AT_ONCE = 20.0, 400
"""Of one silo. A node calls every ten seconds, and a few times for a request."""

Context: TypeAlias = grpc.aio.ServicerContext


class Busy(DpddError):
    """A silo that takes more than its share: of calls, or of an upload's time. Or there are more than we can serve."""


class Gone(DpddError):
    """A caller who has hung up."""


class Superseded(DpddError):
    """A stream of requests that a newer one of the same silo replaced."""


_CODES: list[tuple[type[BaseException], grpc.StatusCode]] = [
    (Unknown, grpc.StatusCode.UNAUTHENTICATED),
    (Expired, grpc.StatusCode.UNAUTHENTICATED),
    (Revoked, grpc.StatusCode.PERMISSION_DENIED),
    (Busy, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (TooOften, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (NotPlanned, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (Superseded, grpc.StatusCode.ABORTED),
    (IntegrityError, grpc.StatusCode.DATA_LOSS),
    (WireError, grpc.StatusCode.INVALID_ARGUMENT),
    (ConfigError, grpc.StatusCode.INVALID_ARGUMENT),
    (DpddError, grpc.StatusCode.FAILED_PRECONDITION),
]


@dataclass
class _Caller:
    """Who calls, for the log, and what is given back when the call is over."""

    name: str
    holds: ExitStack


@dataclass(frozen=True, eq=False)
class Call:
    """One call by `silo`, which showed the certificate with this `fingerprint`."""

    silo: str
    fingerprint: str
    _registry: Registry
    _task: asyncio.Task[Any]

    def check(self) -> None:
        """Raise when the silo was revoked or its certificate expired or replaced meanwhile."""
        self._registry.holder(self.fingerprint)

    def cancel(self) -> None:
        """End it; from any thread."""
        self._task.get_loop().call_soon_threadsafe(self._task.cancel)


class Places:
    """So many calls of one kind at a time; `what` they are, for people."""

    def __init__(self, number: int, what: str) -> None:
        self._number, self._what = number, what
        self.taken = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """A place, or Busy."""
        if self.taken >= self._number:
            raise Busy(f"the coordinator has {self._number} {self._what} already, which is the most; try again later")
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1


class Calls:
    """The calls that are going on; on the event loop alone."""

    def __init__(self, registry: Registry, threads: Threads) -> None:
        self._registry, self._threads = registry, threads
        self._going: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.rates = CallRates(CALLS_A_SECOND, CALLS_AT_ONCE)

    @asynccontextmanager
    async def accepted(self, method: str, context: Context, places: Places) -> AsyncIterator[Call]:
        """A call of a known silo; what goes wrong in here is refused and logged."""
        async with self.refusing(context, "somebody", method, places) as caller:
            call = await self._threads(self._identified, context.auth_context(), _task())
            caller.name = f"silo {call.silo}"
            caller.holds.enter_context(self._counted(call.silo))
            yield call

    @asynccontextmanager
    async def refusing(self, context: Context, who: str, method: str, places: Places) -> AsyncIterator[_Caller]:
        """Turn what goes wrong into a status with one sentence, and a line in the log."""
        with ExitStack() as holds:  # until it is over: a refusal, too, may wait for somebody who does not read
            caller = _Caller(who, holds)
            self._tasks.add(_task())
            holds.callback(self._tasks.discard, _task())
            try:
                holds.enter_context(places.one())
                yield caller
            except (asyncio.CancelledError, Gone, grpc.aio.BaseError):
                log.info("%s by %s from %s broke off", method, caller.name, context.peer())
                await context.abort(grpc.StatusCode.CANCELLED, "broke off")
            except Exception as error:
                code, why = _refusal(error)
                if code is grpc.StatusCode.INTERNAL:
                    log.exception("%s by %s from %s failed", method, caller.name, context.peer())
                log.warning("refused %s by %s from %s: %s", method, caller.name, context.peer(), why)
                await context.abort(code, why)

    async def first(self, context: Context) -> bytes:
        """What the call begins with."""
        try:
            message = await asyncio.wait_for(context.read(), FIRST_MESSAGE_SECONDS)
        except TimeoutError:
            log.warning("ended a call from %s: it said nothing for too long", context.peer())
            raise Gone("it said nothing for too long") from None
        return message if isinstance(message, bytes) else b""

    async def ended(self, seconds: float) -> None:
        """Wait until no call is going on."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=seconds)

    def _identified(self, shown: Any, task: asyncio.Task[Any]) -> Call:
        pem = shown.get("x509_pem_cert")
        if not pem:
            raise Unknown("this call needs a client certificate")
        certificate = x509.load_pem_x509_certificate(pem[0])
        fingerprint = certificate.fingerprint(hashes.SHA256()).hex()
        silo = self._registry.holder(fingerprint)
        if common_name(certificate.subject) != silo:
            raise Unknown("this certificate is for another silo than the registry says")
        return Call(silo, fingerprint, self._registry, task)

    @contextmanager
    def _counted(self, silo: str) -> Iterator[None]:
        if not self.rates.take(silo):
            raise Busy(f"silo {silo} calls too often: more than {self.rates.rate:g} times a second; try again later")
        if self._going[silo] >= MOST_CALLS:
            raise Busy(f"silo {silo} has {MOST_CALLS} calls going on already, which is the most")
        self._going[silo] += 1
        try:
            yield
        finally:
            self._going[silo] -= 1


def _refusal(error: Exception) -> tuple[grpc.StatusCode, str]:
    """The status and the sentence with which a call is refused."""
    if isinstance(error, DpddError):
        return next(code for kind, code in _CODES if isinstance(error, kind)), one_line(error)[:1000]
    if isinstance(error, OSError):  # without the path: it is nobody else's business
        why = f"the coordinator's disk or memory: {error.strerror or error}"
        return grpc.StatusCode.RESOURCE_EXHAUSTED, why
    if isinstance(error, sqlite3.Error):  # the database is busy for too long, or closed because the server stops
        return grpc.StatusCode.UNAVAILABLE, f"the coordinator cannot use its database now ({one_line(error)})"
    return grpc.StatusCode.INTERNAL, "the coordinator failed at this call; its log says why"


def _task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task
