"""The queue of one run's requests: what was asked of which silo, and how far that is. Service and grid meet here.

Every change is in the run's store before those who wait are woken, so a server that dies knows where it was. What is
sent to silos is what this process asked: a run that goes on asks again, after its dry round.
"""

from __future__ import annotations

import fcntl
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from dpdd.common.errors import ConfigError, DpddError
from dpdd.common.wire.answer import Reason, Refusal, decode_answer, encode_answer
from dpdd.common.wire.exchange import NONCE
from dpdd.common.wire.release import stated
from dpdd.server.run.store import Asked, Store
from dpdd.server.transport.ledger_positions import LedgerPositions


@dataclass(frozen=True)
class Rehearsal:
    """A dry round of one request: `nonce` names it, so that no report of an earlier one is taken for its own."""

    nonce: bytes
    request_id: str
    request: bytes
    silos: frozenset[str]


class RunEnded(DpddError):
    """Somebody speaks of a run whose queue is closed."""


class RequestQueue:
    """Requests, releases and refusals of one run; safe to use from many threads. Once it is closed, RunEnded."""

    def __init__(self, folder: Path, positions: LedgerPositions | None = None) -> None:
        self._folder, self._positions = folder, positions
        self._lock = threading.RLock()
        self._changed, self._requested = threading.Condition(self._lock), threading.Condition(self._lock)
        self._version = self._request_version = 0
        self._asked: set[tuple[str, str]] = set()
        self._rehearsals: dict[bytes, Rehearsal] = {}
        self._reports: dict[tuple[bytes, str], bytes] = {}
        self._open_store: Store | None = Store(folder)
        self._lock_file = hold(folder / "lock", f"{folder}: another dpdd-server serves this run")
        self.partial = folder / "partial"
        self.partial.mkdir(exist_ok=True)
        if positions is not None:
            positions.learn(folder)

    def close(self) -> None:
        """Let go of the store; who waits here is woken."""
        with self._lock:
            if self._open_store is not None:
                self._open_store.close()
                self._open_store = None
                self._lock_file.close()
                self.wake()
                self._notify()

    @property
    def _store(self) -> Store:
        if self._open_store is None:
            raise RunEnded("this run has ended; what is on its way can be taken when it goes on")
        return self._open_store

    def ask(self, request_id: str, request: bytes, silos: Iterable[str]) -> None:
        """Put a request to silos, again where one refused earlier; those whose release is here are not asked."""
        silos = list(silos)
        if self._positions is not None:
            self._positions.put(request_id, silos)
        with self._lock:
            self._store.add_request(request_id, request)
            self._warn({silo: self._positions.forks(silo) for silo in silos} if self._positions else {})
            have = self._store.digests(request_id)
            for silo in silos:
                if silo not in have:
                    self._store.note(request_id, silo, "asked")
                    self._asked.add((request_id, silo))
            self.wake()
            self._notify()

    def open_for(self, silo: str) -> list[Asked]:
        """The requests that this silo was asked and has not answered for good."""
        with self._lock:
            rows = self._store.asked(silo=silo)
            return [row for row in rows if (row.request_id, silo) in self._asked and not settled(row)]

    def owes(self, silo: str) -> bool:
        """Whether this silo was asked something that it has not answered for good; known also after the run's end."""
        with self._lock:
            return any(who == silo for _, who in self._asked)

    def rehearse(self, request_id: str, request: bytes, silos: Iterable[str]) -> Rehearsal:
        """Begin a dry round: these silos are to report what they would do with the request."""
        rehearsal = Rehearsal(secrets.token_bytes(NONCE), request_id, request, frozenset(silos))
        with self._lock:
            self._rehearsals[rehearsal.nonce] = rehearsal
            self.wake()
        return rehearsal

    def rehearsals_for(self, silo: str) -> Iterator[Rehearsal]:
        """The dry rounds in which this silo has not reported."""
        with self._lock:
            rounds = list(self._rehearsals.values())
            done = {nonce for nonce, reporter in self._reports if reporter == silo}
        return (each for each in rounds if silo in each.silos and each.nonce not in done)

    def rehearsal(self, nonce: bytes, silo: str) -> Rehearsal | None:
        """The dry round of that name, if this silo is in it."""
        with self._lock:
            found = self._rehearsals.get(nonce)
        return found if found is not None and silo in found.silos else None

    def report(self, rehearsal: Rehearsal, silo: str, report: bytes) -> None:
        """A silo reported its plan; nothing, if it could not. Its first word in a dry round counts."""
        with self._lock:
            if (rehearsal.nonce, silo) not in self._reports:
                if report:
                    self._store.add_report(rehearsal.request_id, silo, report)
                self._reports[rehearsal.nonce, silo] = report
                self._notify()

    def reported(self, rehearsal: Rehearsal, silo: str) -> bytes | None:
        """A silo's report, empty if it could not tell; None when nothing came."""
        with self._lock:
            return self._reports.get((rehearsal.nonce, silo))

    def end_rehearsals(self) -> None:
        """The dry round is over: it is not sent any more."""
        with self._lock:
            self._rehearsals.clear()
            self._reports.clear()

    def request(self, request_id: str) -> bytes:
        """The bytes of a request that was asked."""
        with self._lock:
            data = self._store.request(request_id)
        assert data is not None
        return data

    def row(self, request_id: str, silo: str) -> Asked | None:
        """How far a silo is with a request; None when it was never asked."""
        with self._lock:
            return next(iter(self._store.asked(request_id=request_id, silo=silo)), None)

    def note(self, request_id: str, silo: str, state: str) -> None:
        """A silo got a request, or is in trouble with it."""
        with self._lock:
            row = self.row(request_id, silo)
            if row is not None and row.state != "released" and (state != "delivered" or row.state == "asked"):
                self._store.note(request_id, silo, state)
                self._notify()

    def refuse(self, refusal: Refusal) -> None:
        """A silo said no (or: not yet); that does not undo a release."""
        with self._lock:
            if self._store.digest(refusal.request_id, refusal.silo) is not None:
                return
            self._store.note(refusal.request_id, refusal.silo, "refused", encode_answer(refusal))
            if refusal.reason is not Reason.AWAITING_APPROVAL:
                self._asked.discard((refusal.request_id, refusal.silo))
            self._notify()

    def digest(self, request_id: str, silo: str) -> str | None:
        """The release that is here for a request, if any."""
        with self._lock:
            return self._store.digest(request_id, silo)

    def read(self, digest: str) -> bytes:
        """A stored release."""
        with self._lock:
            store = self._store
        return store.read(digest)

    def adopt(self, path: Path, digest: str, request_id: str, silo: str) -> None:
        """A checked and synced release arrived: move it into the store."""
        with self._lock:
            self._store.adopt(path, digest, request_id, silo)
            if self._positions is not None:
                forks = self._positions.note(self._folder, digest, stated(self._folder / digest))
                self._warn({silo: forks})
            self._store.note(request_id, silo, "released")
            self._asked.discard((request_id, silo))
            self._notify()

    def wait(self, version: int, timeout: float) -> int:
        """Sleep until something changed since `version`; the version now."""
        with self._lock:
            self._changed.wait_for(lambda: self._version != version, timeout)
            return self._version

    def wake(self) -> None:
        """Make those who wait for requests look up."""
        with self._lock:
            self._request_version += 1
            self._requested.notify_all()

    def wait_for_requests(self, version: int, timeout: float) -> int:
        """Sleep until something was asked since `version`; the version now."""
        with self._lock:
            self._requested.wait_for(lambda: self._request_version != version, timeout)
            return self._request_version

    def _warn(self, forks: Mapping[str, Sequence[str]]) -> None:
        for silo, sentences in forks.items():
            for sentence in sentences:
                self._store.warn(silo, sentence)

    def _notify(self) -> None:
        self._version += 1
        self._changed.notify_all()


def hold(path: Path, otherwise: str) -> IO[bytes]:
    """A lock for one process at a time, or a ConfigError. A lock of the process, not of the file: a child does not keep
    it."""
    file = path.open("ab")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise ConfigError(otherwise) from None
    return file


def settled(row: Asked) -> bool:
    """Whether a silo has answered for good: an answer that awaits approval is none, and neither is trouble."""
    if row.state == "released":
        return True
    return row.state == "refused" and not awaits_approval(row)


def awaits_approval(row: Asked) -> bool:
    """Whether the silo's operator has still to decide."""
    if row.state != "refused" or row.refusal is None:
        return False
    answer = decode_answer(row.refusal)
    return isinstance(answer, Refusal) and answer.reason is Reason.AWAITING_APPROVAL
