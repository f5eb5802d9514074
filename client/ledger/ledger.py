"""The silo's privacy budget: an append-only ledger in SQLite, with full durability.

`reserve` before records are read, `commit` when the signed release lies in the outbox. Both happen in one transaction
each, under a write lock, so two processes cannot both take what is left; both are idempotent per request id, so a
restart spends nothing twice. A reservation counts as spent from the moment it is made.

Composition is fully adaptive, so it is bounded by a privacy filter (`dpdd.common.privacy.filters`): requests are chosen
by somebody who has seen the earlier answers.

A method may release in stages. The reservation of stage 0 is for all of them together, whether or not the others are
ever asked for; `begin_stage` notes which request took which of them, one each for ever, and spends nothing. A later
stage's input may depend on the earlier answers: Gaussian noise composes to the same μ for adaptively chosen queries,
as long as each has the sensitivity and the noise that were reserved.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpdd.client.ledger import hash_chain
from dpdd.client.ledger.entry_fields import check_fields, read_entry
from dpdd.client.ledger.hash_chain import Entry, EntryKind
from dpdd.client.ledger.lookup import find, paid, spendings, taken_stage
from dpdd.common.errors import BudgetError, LedgerError
from dpdd.common.files.database import open_database
from dpdd.common.files.untrusted import shown
from dpdd.common.privacy import events
from dpdd.common.privacy.accounting import Guarantee
from dpdd.common.privacy.filters import Budget, Spending, Verdict, mode_for, remaining, spent_epsilon, verdict

CLOCK_TOLERANCE = timedelta(seconds=60)

_SCHEMA = """
CREATE TABLE entries (
    seq INTEGER PRIMARY KEY, time TEXT NOT NULL, kind TEXT NOT NULL, request_id TEXT NOT NULL,
    body TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL UNIQUE, signature BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX one_of_each ON entries (request_id, kind) WHERE kind IN ('reserve', 'stage', 'commit');
CREATE UNIQUE INDEX once ON entries (json_extract(body, '$.root'), json_extract(body, '$.stage')) WHERE kind = 'stage';
CREATE TRIGGER append_only BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER keep_all BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
"""


class OverBudget(BudgetError):
    """A request that does not fit, with the figures."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        because = f": {verdict.why}" if verdict.why else ""
        figures = f"requested ε = {verdict.requested:.4g}, remaining ε = {verdict.remaining:.4g}"
        difference = f"difference {max(verdict.difference, 0.0):.4g}"
        super().__init__(f"the request does not fit the budget{because}: {figures}, {difference}")


@dataclass(frozen=True)
class BudgetStatus:
    """What the operator wants to know at a glance: `reserved` requests and `committed` releases, one per stage."""

    silo: str
    budget: Budget
    spent: float
    remaining: float
    reserved: int
    committed: int
    head: str


class Ledger:
    """One silo's ledger. Every opening verifies the whole hash chain."""

    def __init__(
        self,
        path: Path,
        silo: str,
        budget: Budget,
        key: Ed25519PrivateKey,
        *,
        timeout: float = 30.0,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._path, self._silo, self._budget, self._key, self._clock = path, silo, budget, key, clock
        with self._errors():
            self._db = open_database(
                path, "the ledger", ("entries",), error=LedgerError, timeout=timeout, thorough=False
            )  # its hashes are checked below
            try:
                self._db.execute("PRAGMA journal_mode = DELETE")
                self._db.execute("PRAGMA synchronous = EXTRA")
                self._check()
            except BaseException:
                self._db.close()
                raise

    @classmethod
    def create(cls, path: Path, silo: str, budget: Budget, key: Ed25519PrivateKey) -> None:
        """Start a ledger; the file must not exist."""
        if path.exists():
            raise LedgerError(f"{path}: there is a ledger already; a budget is never started over")
        first = hash_chain.next_entry(None, _stamp(datetime.now(UTC)), "open", "", _budget_body(silo, budget), key)
        try:
            with sqlite3.connect(path, isolation_level=None) as db:
                db.execute("PRAGMA synchronous = EXTRA")
                db.executescript("BEGIN IMMEDIATE;" + _SCHEMA)
                _insert(db, first)
                db.execute("COMMIT")
            db.close()
        except sqlite3.Error as error:
            raise LedgerError(f"{path}: the ledger cannot be made ({error})") from None

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def entries(self) -> list[Entry]:
        """All entries, verified."""
        with self._errors():
            rows = self._db.execute("SELECT * FROM entries ORDER BY seq").fetchall()
        try:
            entries = [read_entry(row) for row in rows]
        except (ValueError, TypeError):
            raise LedgerError(f"{self._path}: an entry is not readable: the ledger was tampered with") from None
        if not entries or entries[0].kind != "open":
            raise LedgerError(f"{self._path}: the ledger's first entry is missing: it was tampered with")
        hash_chain.verify(entries, self._key.public_key())
        check_fields(entries)
        return entries

    def reserve(
        self,
        request_id: str,
        method: str,
        spending: Spending,
        guarantee: Guarantee,
        details: dict[str, Any],
        *,
        stages: int = 1,
        unprotected_allowed: bool = False,
    ) -> Entry:
        """Set budget aside for a request, durably; OverBudget when it does not fit. Reserving again changes nothing.

        `spending` is for all `stages` of the request together, and they fit together or not at all.

        `unprotected_allowed` is for simulated people: a release without noise then passes, and nothing fits after it.
        """
        with self._writing() as entries:
            known = find(entries, "reserve", request_id)
            if known is not None:
                return known
            decision = verdict(self._budget, spendings(entries), spending)
            if not decision.fits and not (unprotected_allowed and math.isinf(guarantee.epsilon)):
                raise OverBudget(decision)
            body = {
                "method": method,
                "event": events.to_json(spending.event),
                "distance": spending.distance,
                "epsilon": guarantee.epsilon,
                "delta": guarantee.delta,
                "accountant": guarantee.accountant,
                "filter": decision.mode,
                "stages": stages,
                **details,
            }
            return self._append(entries, "reserve", request_id, body)

    def begin_stage(self, request_id: str, root: str, stage: int, spending: Spending) -> Entry:
        """Note, durably, that a request takes `stage` of what was reserved for the request `root`; spends nothing.

        `spending` is what all stages cost by today's plan. NotCovered unless that was reserved, and when another
        request has this stage already. Beginning again changes nothing.
        """
        with self._writing() as entries:
            known = taken_stage(entries, request_id, root, stage, spending)
            return known or self._append(entries, "stage", request_id, {"root": root, "stage": stage})

    def check_stage(self, request_id: str, root: str, stage: int, spending: Spending) -> None:
        """NotCovered when `begin_stage` would say so."""
        taken_stage(self.entries(), request_id, root, stage, spending)

    def commit(self, request_id: str, release_sha256: str) -> Entry:
        """Note which release answered a reserved request; a second, different one is an error."""
        with self._writing() as entries:
            if paid(entries, request_id) is None:
                raise LedgerError(f"request {request_id[:12]} was never reserved; its release must not leave")
            known = find(entries, "commit", request_id)
            if known is None:
                return self._append(entries, "commit", request_id, {"release_sha256": release_sha256})
            if known.body["release_sha256"] != release_sha256:
                raise LedgerError(f"request {request_id[:12]} was answered by another release already")
            return known

    def note(self, kind: EntryKind, request_id: str = "", body: dict[str, Any] | None = None) -> Entry:
        """Append an operator's decision: an approval, a denial, a new budget, an accepted clock."""
        with self._writing(check_clock=kind != "clock") as entries:
            return self._append(entries, kind, request_id, body or {})

    def accept_budget(self, budget: Budget) -> None:
        """Record that the operator changed the budget in `silo.toml`; the filter that releases settled stays."""
        entries = self.entries()
        spent = spendings(entries)
        if spent and mode_for(self.recorded_budget(entries), spent[0]) != mode_for(budget, spent[0]):
            raise LedgerError(
                "the first release settled how this ledger composes, and the new budget would change that; "
                "keep its composition, or start a new silo with new records"
            )
        self._budget = budget
        self.note("budget", body=_budget_body(self._silo, budget))

    def recorded_budget(self, entries: list[Entry] | None = None) -> Budget:
        """The budget that the ledger was opened with, or that was accepted since."""
        for entry in reversed(entries if entries is not None else self.entries()):
            if entry.kind in ("open", "budget"):
                return Budget(entry.body["epsilon"], entry.body["delta"], entry.body["composition"])
        raise LedgerError(f"{self._path}: the ledger states no budget: it was tampered with")

    def judge(self, request_id: str, spending: Spending) -> Verdict | None:
        """What `reserve` would say, without reserving; None when the request is reserved already."""
        entries = self.entries()
        if find(entries, "reserve", request_id) is not None:
            return None
        return verdict(self._budget, spendings(entries), spending)

    def committed(self, request_id: str) -> str | None:
        """SHA-256 of the release that answered the request, if one did."""
        entry = find(self.entries(), "commit", request_id)
        return None if entry is None else str(entry.body["release_sha256"])

    def reservation(self, request_id: str) -> Entry | None:
        """The entry that set budget aside for the request, or gave it a stage of what was set aside, if any."""
        return paid(self.entries(), request_id)

    def unpaid(self, request_ids: Iterable[str]) -> list[str]:
        """Those of the requests for which no budget was set aside."""
        paid = {entry.request_id for entry in self.entries() if entry.kind in ("reserve", "stage")}
        return [request_id for request_id in request_ids if request_id not in paid]

    def decision(self, request_id: str) -> Entry | None:
        """The operator's last word on a request, if any."""
        decisions = [e for e in self.entries() if e.request_id == request_id and e.kind in ("approve", "deny")]
        return decisions[-1] if decisions else None

    def status(self) -> BudgetStatus:
        """Spent and remaining, as of now."""
        entries = self.entries()
        spent = spendings(entries)
        return BudgetStatus(
            silo=self._silo,
            budget=self._budget,
            spent=spent_epsilon(self._budget, spent),
            remaining=remaining(self._budget, spent),
            reserved=sum(entry.kind == "reserve" for entry in entries),
            committed=sum(entry.kind == "commit" for entry in entries),
            head=entries[-1].hash,
        )

    def _check(self) -> None:
        self._db.execute("BEGIN")  # the shared lock keeps writers out until the file's length was compared
        quick_check = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
        length = self._pragma("page_count") * self._pragma("page_size")
        whole = quick_check == "ok" and self._path.stat().st_size == length
        self._db.execute("COMMIT")
        if not whole:
            raise LedgerError(f"{self._path}: the ledger file is damaged; restore it from a backup")
        owner = self.entries()[0].body["silo"]
        if owner != self._silo:
            whose = shown(repr(owner), 100)
            raise LedgerError(f"{self._path}: this ledger belongs to silo {whose}, but silo.toml says {self._silo!r}")

    def _pragma(self, name: str) -> int:
        return int(self._db.execute(f"PRAGMA {name}").fetchone()[0])

    def check_budget(self) -> None:
        """LedgerError when `silo.toml` and the ledger disagree about the budget."""
        recorded = self.recorded_budget()
        if recorded != self._budget:
            raise LedgerError(
                f"silo.toml has a budget of ({self._budget.epsilon:g}, {self._budget.delta:g}, "
                f"{self._budget.composition}), the ledger one of ({recorded.epsilon:g}, {recorded.delta:g}, "
                f"{recorded.composition}); `dpdd-client budget --accept-change` records the new one"
            )

    def check_holdout(self, details: Mapping[str, str]) -> None:
        """LedgerError unless all reservations were made with the holdout in `details` (which may have none)."""
        declared = details.get("holdout")
        for entry in self.entries():
            if entry.kind == "reserve" and (before := entry.body.get("holdout")) != declared:
                now, then = (text.split()[0] if text else "none" for text in (declared, before))
                why = "with another key" if now == then else f"with a holdout of {then}, and silo.toml says {now}"
                raise LedgerError(
                    f"earlier releases of this silo were made {why}: records would change sides, so put "
                    "evaluation.holdout (or state/holdout.key) back as it was"
                )

    def _append(self, entries: list[Entry], kind: EntryKind, request_id: str, body: dict[str, Any]) -> Entry:
        entry = hash_chain.next_entry(entries[-1], _stamp(self._clock()), kind, request_id, body, self._key)
        _insert(self._db, entry)
        return entry

    @contextmanager
    def _writing(self, check_clock: bool = True) -> Iterator[list[Entry]]:
        """One durable transaction that starts with the write lock, so that what was read still holds at its end."""
        with self._errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                entries = self.entries()
                if check_clock:
                    self._check_clock(entries)
                yield entries
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _check_clock(self, entries: list[Entry]) -> None:
        now, last = self._clock(), datetime.fromisoformat(entries[-1].time)
        if now < last - CLOCK_TOLERANCE:
            raise LedgerError(
                f"the clock reads {_stamp(now)}, but the ledger's last entry is from {_stamp(last)}; set the clock "
                f"right, or record that it was wrong with `dpdd-client log --accept-clock`"
            )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise LedgerError(f"{self._path}: {_explain(error)}; nothing was released") from None


def _explain(error: sqlite3.Error | UnicodeDecodeError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "this is not a whole ledger any more (a text in it is damaged)"
    text = shown(error, 200)  # parts of a damaged file may be in it
    if "locked" in text:
        return "another process is writing the ledger and did not finish in time"
    if "full" in text:
        return "the disk is full, so the ledger cannot be written"
    if "readonly" in text or "read-only" in text:
        return "the ledger is read-only for this user"
    if "unable to open" in text:
        return "the ledger cannot be opened (does the folder exist, and may this user write it?)"
    if "malformed" in text or "not a database" in text or "no such table" in text:
        return f"this is not a whole ledger any more ({text})"
    return f"the ledger failed ({text})"


def _insert(db: sqlite3.Connection, entry: Entry) -> None:
    row = (entry.seq, entry.time, entry.kind, entry.request_id, hash_chain.canonical(entry.body))
    db.execute(
        "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*row, entry.previous, entry.hash, entry.signature)
    )


def _budget_body(silo: str, budget: Budget) -> dict[str, Any]:
    return {
        "silo": silo,
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "composition": budget.composition,
        "neighbours": events.NEIGHBOURS,
    }


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")
