"""Admission of calls, before anything of one is read: who calls, how many calls it has, how long we wait for it.

gRPC would read the message of a unary call before it tells us whose call it is, and wait for that message for ever, in
a thread of ours. So all methods are served as streams: a caller is known (by the certificate that TLS verified) and
counted first, and has to say what it wants in `FIRST_MESSAGE_SECONDS` seconds.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from dpdd.common.config import one_line
from dpdd.common.errors import ConfigError, DpddError, IntegrityError, WireError
from dpdd.server.transport.authority import common_name
from dpdd.server.transport.limits import CallRates
from dpdd.server.transport.registry import Expired, Registry, Revoked, Unknown
from dpdd.server.transport.request_queue import NotPlanned

log = logging.getLogger("dpdd.exchange")

MOST_CALLS = 32
"""Of one silo at a time: two connections' worth. A node has three: its stream, a heartbeat, an upload or a refusal."""

FIRST_MESSAGE_SECONDS = 20.0

CALLS_A_SECOND, CALLS_AT_ONCE = 20.0, 400
"""Of one silo. A node calls every ten seconds, and a few times for a request."""


class Busy(DpddError):
    """A silo that takes more than its share: of calls, or of an upload's time."""


class Gone(DpddError):
    """A caller who has hung up."""


class Superseded(DpddError):
    """A stream of requests that a newer one of the same silo replaced."""


_CODES: list[tuple[type[BaseException], grpc.StatusCode]] = [
    (Unknown, grpc.StatusCode.UNAUTHENTICATED),
    (Expired, grpc.StatusCode.UNAUTHENTICATED),
    (Revoked, grpc.StatusCode.PERMISSION_DENIED),
    (Busy, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (NotPlanned, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (Superseded, grpc.StatusCode.ABORTED),
    (IntegrityError, grpc.StatusCode.DATA_LOSS),
    (WireError, grpc.StatusCode.INVALID_ARGUMENT),
    (ConfigError, grpc.StatusCode.INVALID_ARGUMENT),
    (DpddError, grpc.StatusCode.FAILED_PRECONDITION),
]


@dataclass(frozen=True, eq=False)
class Call:
    """One call by `silo`."""

    silo: str
    _fingerprint: str
    _registry: Registry
    _context: grpc.ServicerContext

    def check(self) -> None:
        """Raise when the silo was revoked or its certificate expired or replaced meanwhile, or when it hung up."""
        self._registry.holder(self._fingerprint)
        if not self._context.is_active():
            raise Gone("the connection broke")

    def cancel(self) -> None:
        """End it."""
        self._context.cancel()


class Timeouts:
    """Cancels calls that keep us waiting; `enforce` must be called every now and then."""

    def __init__(self) -> None:
        self._set: dict[object, tuple[float, grpc.ServicerContext]] = {}

    @contextmanager
    def after(self, seconds: float, context: grpc.ServicerContext) -> Iterator[None]:
        """Cancel the call unless we leave in time."""
        key = object()
        self._set[key] = (time.monotonic() + seconds, context)
        try:
            yield
        finally:
            del self._set[key]

    def enforce(self) -> None:
        """Cancel what is overdue."""
        for due, context in list(self._set.values()):
            if time.monotonic() > due:
                log.warning("ended a call from %s: it said nothing for too long", context.peer())
                context.cancel()


class Calls:
    """The calls that are going on."""

    def __init__(self, registry: Registry) -> None:
        self._registry, self.timeouts = registry, Timeouts()
        self._lock = threading.Lock()
        self._going: Counter[str] = Counter()
        self.rates = CallRates(CALLS_A_SECOND, CALLS_AT_ONCE)

    @contextmanager
    def accepted(self, method: str, context: grpc.ServicerContext) -> Iterator[Call]:
        """A call of a known silo; what goes wrong in here is refused and logged."""
        with refusing(context, "somebody", method) as known:
            call = self._identified(context)
            known.append(call.silo)
            with self._counted(call.silo):
                yield call

    def first(self, parts: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        """What the call begins with."""
        with self.timeouts.after(FIRST_MESSAGE_SECONDS, context):
            return next(parts, b"")

    def _identified(self, context: grpc.ServicerContext) -> Call:
        shown = context.auth_context().get("x509_pem_cert")
        if not shown:
            raise Unknown("this call needs a client certificate")
        certificate = x509.load_pem_x509_certificate(shown[0])
        fingerprint = certificate.fingerprint(hashes.SHA256()).hex()
        silo = self._registry.holder(fingerprint)
        if common_name(certificate.subject) != silo:
            raise Unknown("this certificate is for another silo than the registry says")
        return Call(silo, fingerprint, self._registry, context)

    @contextmanager
    def _counted(self, silo: str) -> Iterator[None]:
        if not self.rates.take(silo):
            raise Busy(f"silo {silo} calls too often: more than {self.rates.rate:g} times a second; try again later")
        with self._lock:
            if self._going[silo] >= MOST_CALLS:
                raise Busy(f"silo {silo} has {MOST_CALLS} calls going on already, which is the most")
            self._going[silo] += 1
        try:
            yield
        finally:
            with self._lock:
                self._going[silo] -= 1


@contextmanager
def refusing(context: grpc.ServicerContext, who: str, method: str) -> Iterator[list[str]]:
    """Turn what goes wrong into a status with one sentence, and a line in the log."""
    known: list[str] = []

    def name() -> str:
        return f"silo {known[0]}" if known else who

    def refuse(code: grpc.StatusCode, why: str) -> NoReturn:
        log.warning("refused %s by %s from %s: %s", method, name(), context.peer(), why)
        context.abort(code, why)
        raise AssertionError

    try:
        yield known
    except (Gone, grpc.RpcError):
        log.info("%s by %s from %s broke off", method, name(), context.peer())
        context.abort(grpc.StatusCode.CANCELLED, "broke off")
    except DpddError as error:
        refuse(next(code for kind, code in _CODES if isinstance(error, kind)), one_line(error)[:1000])
    except OSError as error:  # without the path: it is nobody else's business
        refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, f"the coordinator's disk or memory: {error.strerror or error}")
    except sqlite3.Error as error:  # the database is busy for too long, or closed because the server stops
        refuse(grpc.StatusCode.UNAVAILABLE, f"the coordinator cannot use its database now ({one_line(error)})")
    except Exception:
        log.exception("%s by %s from %s failed", method, name(), context.peer())
        refuse(grpc.StatusCode.INTERNAL, "the coordinator failed at this call; its log says why")
