"""The queue of one run's requests: what was asked of which silo, and how far that is. Service and grid meet here.

Every change is in the run's store before those who wait are woken, so a server that dies knows where it was. What is
sent to silos is what this process asked: a run that goes on asks again, after its dry round.
"""

from __future__ import annotations

import fcntl
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from dpdd.common.errors import ConfigError, DpddError
from dpdd.common.methods.verification import Expected, expected_of
from dpdd.common.wire.answer import Reason, Refusal, decode_answer, encode_answer
from dpdd.common.wire.exchange import NONCE
from dpdd.common.wire.release import stated
from dpdd.common.wire.request import decode_request
from dpdd.server.run.store import Asked, Store
from dpdd.server.transport.ledger_positions import LedgerPositions

SKIPPED = "skipped"
"""The state of a silo without which a round was closed: nobody waits for its answer."""


@dataclass(frozen=True)
class Rehearsal:
    """A dry round of one request: `nonce` names it, so that no report of an earlier one is taken for its own."""

    nonce: bytes
    request_id: str
    request: bytes
    silos: frozenset[str]


class RunEnded(DpddError):
    """Somebody speaks of a run whose queue is closed."""


class NotPlanned(DpddError):
    """An answer that came before the coordinator knows what it has to be."""


class RequestQueue:
    """Requests, releases and refusals of one run; safe to use from many threads. Once it is closed, RunEnded.

    Whoever sends requests sets `news`, which is called when there is something to send; it must return at once.
    """

    def __init__(self, folder: Path, positions: LedgerPositions | None = None) -> None:
        self._folder, self._positions = folder, positions
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._version = 0
        self.news: Callable[[], None] = lambda: None
        self._asked: dict[str, set[str]] = {}  # by silo
        self._unusable: dict[tuple[str, str], str] = {}
        self._expected: dict[str, Expected] = {}
        self._planning = threading.Lock()
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
                self.news()
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
                    self._asked.setdefault(silo, set()).add(request_id)
                    self._unusable.pop((request_id, silo), None)
            self.news()
            self._notify()

    def withdraw(self, request_id: str, silos: Iterable[str]) -> None:
        """Do not send a request to these silos any more. What one of them answers all the same is kept."""
        with self._lock:
            for silo in silos:
                row = self.row(request_id, silo)
                if row is not None and not settled(row):
                    self._store.note(request_id, silo, SKIPPED)
                self._answered(request_id, silo)

    def open_for(self, silo: str) -> list[Asked]:
        """The requests that this silo was asked and has not answered for good."""
        with self._lock:
            mine, store = self._asked.get(silo), self._store
            if not mine:  # most silos, most of the time
                return []
            return [row for row in store.asked(silo=silo) if row.request_id in mine and not settled(row)]

    def owes(self, silo: str) -> bool:
        """Whether this silo was asked something that it has not answered for good; known also after the run's end."""
        with self._lock:
            return bool(self._asked.get(silo))

    def rehearse(self, request_id: str, request: bytes, silos: Iterable[str]) -> Rehearsal:
        """Begin a dry round: these silos are to report what they would do with the request."""
        rehearsal = Rehearsal(secrets.token_bytes(NONCE), request_id, request, frozenset(silos))
        with self._lock:
            self._rehearsals[rehearsal.nonce] = rehearsal
            self.news()
        return rehearsal

    def rehearsals_for(self, silo: str) -> list[Rehearsal]:
        """The dry rounds in which this silo has not reported."""
        with self._lock:
            rounds = self._rehearsals.values()
            return [each for each in rounds if silo in each.silos and (each.nonce, silo) not in self._reports]

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

    def expected(self, request_id: str, *, wait: bool = False) -> Expected:
        """What the answers to a request are. Planning samples can take minutes: one caller plans, and the others `wait`
        or are NotPlanned, so that no more than one thread is taken."""
        if (known := self._expected.get(request_id)) is not None:
            return known
        if not self._planning.acquire(blocking=wait):
            raise NotPlanned(f"what answers to request {request_id[:12]} have to be is still computed; send it again")
        try:
            if request_id not in self._expected:
                self._expected[request_id] = expected_of(decode_request(self.request(request_id)))
            return self._expected[request_id]
        finally:
            self._planning.release()

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

    def reject(self, request_id: str, silo: str, why: str) -> None:
        """A silo sent a release that is not what it was asked for: it is not waited for, and what is wrong is told."""
        with self._lock:
            self._unusable[request_id, silo] = why
            self.note(request_id, silo, "in trouble")

    def unusable(self, request_id: str, silo: str) -> str | None:
        """What was wrong with the release that a silo sent, if it was rejected since it was asked."""
        with self._lock:
            return self._unusable.get((request_id, silo))

    def refuse(self, refusal: Refusal) -> None:
        """A silo said no (or: not yet); that does not undo a release."""
        with self._lock:
            if self._store.digest(refusal.request_id, refusal.silo) is not None:
                return
            self._store.note(refusal.request_id, refusal.silo, "refused", encode_answer(refusal))
            if refusal.reason is not Reason.AWAITING_APPROVAL:
                self._answered(refusal.request_id, refusal.silo)
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
            self._answered(request_id, silo)
            self._notify()

    def second(self, request_id: str, silo: str) -> None:
        """A silo announces another release than the one that is here, which stays; it is known against the silo."""
        with self._lock:
            if self._positions is not None:
                self._warn({silo: self._positions.second(silo, request_id)})

    def wait(self, version: int, timeout: float) -> int:
        """Sleep until something changed since `version`; the version now."""
        with self._lock:
            self._changed.wait_for(lambda: self._version != version, timeout)
            return self._version

    def _answered(self, request_id: str, silo: str) -> None:
        self._asked.get(silo, set()).discard(request_id)

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
    if row.state in ("released", SKIPPED):
        return True
    return row.state == "refused" and not awaits_approval(row)


def awaits_approval(row: Asked) -> bool:
    """Whether the silo's operator has still to decide."""
    if row.state != "refused" or row.refusal is None:
        return False
    answer = decode_answer(row.refusal)
    return isinstance(answer, Refusal) and answer.reason is Reason.AWAITING_APPROVAL
