"""The ledger's file: one durable transaction for each entry, with the checkpoint that it leads to.

Opening a ledger verifies its end and its checkpoint; every entry that is looked up is verified by itself. Whatever does
not fit together (no checkpoint, one that is behind the entries, a schema that somebody else changed) is settled by all
entries.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpdd.client.ledger import checkpoint as checkpoints
from dpdd.client.ledger import hash_chain, schema
from dpdd.client.ledger.checkpoint import Checkpoint
from dpdd.client.ledger.entry_fields import check_fields, read_entry
from dpdd.client.ledger.hash_chain import Entry, EntryKind
from dpdd.client.ledger.lookup import Lookup
from dpdd.client.ledger.position import Position
from dpdd.common.errors import LedgerError
from dpdd.common.files.database import open_database
from dpdd.common.files.untrusted import shown
from dpdd.common.privacy import events
from dpdd.common.privacy.filters import Budget

CLOCK_TOLERANCE = timedelta(seconds=60)


class Draft(NamedTuple):
    """An entry that is to be appended; `beyond` as in `hash_chain.next_entry`."""

    kind: EntryKind
    request_id: str
    body: dict[str, Any]
    beyond: int = 0


class Ends(Protocol):
    """What a witness sees of a ledger."""

    def position(self) -> Position:
        """The ledger's end."""

    def holds(self, known: Position) -> bool:
        """Whether that entry is in this ledger, or one that stands for it."""


class Witness(Protocol):
    """Something outside the ledger that remembers its end."""

    def check(self, ledger: Ends) -> None:
        """LedgerError when it knows of entries that the ledger has not."""

    def follow(self, ledger: Ends) -> None:
        """Remember the ledger's end as it is now, unless that would forget something."""


class LedgerFile:
    """One silo's ledger, as far as it is a file. `anchor` is told of every entry before anybody else is."""

    def __init__(
        self,
        path: Path,
        silo: str,
        budget: Budget,
        key: Ed25519PrivateKey,
        *,
        anchor: Witness | None = None,
        timeout: float = 30.0,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._path, self._silo, self._budget, self._key, self._clock = path, silo, budget, key, clock
        self._anchor = anchor
        self._verified: Checkpoint | None = None
        with self._errors():
            self._db = open_database(
                path, "the ledger", ("entries",), error=LedgerError, timeout=timeout, thorough=False
            )  # what is read is checked by its hash
            self._lookup = Lookup(self._db, key.public_key())
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
        first = hash_chain.next_entry(None, stamp(datetime.now(UTC)), "open", "", budget_body(silo, budget), key)
        try:
            with sqlite3.connect(path, isolation_level=None) as db:
                db.execute("PRAGMA synchronous = EXTRA")
                db.execute("BEGIN IMMEDIATE")
                schema.make_schema(db)
                schema.insert(db, first)
                checkpoints.store(db, checkpoints.summed([first]), key)
                db.execute("COMMIT")
            db.close()
        except sqlite3.Error as error:
            raise LedgerError(f"{path}: the ledger cannot be made ({error})") from None

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def entries(self) -> list[Entry]:
        """All entries: the whole ledger, verified."""
        with self._errors(), self._reading():
            if not schema.is_whole(self._db, thorough=True):
                raise LedgerError(f"{self._path}: the ledger file is damaged; restore it from a backup")
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

    def verify(self) -> list[Entry]:
        """All entries, verified, and a checkpoint that is theirs; a file that cannot be written stays as it is."""
        entries = self.entries()
        self._verified = checkpoints.summed(entries)
        with self._errors(), self._reading():
            same = checkpoints.read(self._db, self._key.public_key()) == self._verified
        if not same:
            with suppress(sqlite3.OperationalError), self._transaction():
                self._store(checkpoints.summed(self.entries()))
        return entries

    def position(self) -> Position:
        """The ledger's end."""
        return self._now().head

    def holds(self, known: Position) -> bool:
        """Whether that entry is in this ledger, or one that stands for it since the ledger was rebuilt."""
        with self._errors(), self._reading():
            entry = self._lookup.at(known.sequence)
            same = entry is not None and entry.hash == known.entry
            return same or self._lookup.standing_for(known.entry) is not None

    def _check(self) -> None:
        with self._reading():
            if not schema.is_whole(self._db, thorough=False):
                raise LedgerError(f"{self._path}: the ledger file is damaged; restore it from a backup")
            usable = checkpoints.read(self._db, self._key.public_key()) is not None
        if not usable:
            self.verify()
        owner = self._now().silo
        if owner != self._silo:
            whose = shown(repr(owner), 100)
            raise LedgerError(f"{self._path}: this ledger belongs to silo {whose}, but silo.toml says {self._silo!r}")

    def _now(self) -> Checkpoint:
        with self._errors(), self._reading():
            return self._current()

    def _current(self) -> Checkpoint:
        """What all entries come to, within a transaction: by the checkpoint, or else from all of them."""
        stored, last = checkpoints.read(self._db, self._key.public_key()), self._lookup.last()
        end = (last.seq, last.hash) if last else (0, "")
        for known in (stored, self._verified):
            if known is not None and (known.head.sequence, known.head.entry) == end:
                return known
        if stored is not None:
            then = self._lookup.at(stored.head.sequence)
            if then is None or then.hash != stored.head.entry:
                raise LedgerError(f"ledger entry {stored.head.sequence} is missing: the ledger was tampered with")
        self._verified = checkpoints.summed(self.entries())
        return self._verified

    def _append(self, now: Checkpoint, draft: Draft) -> Entry:
        time, last = stamp(self._clock()), self._lookup.last()
        entry = hash_chain.next_entry(last, time, draft.kind, draft.request_id, draft.body, self._key, draft.beyond)
        schema.insert(self._db, entry)
        self._store(checkpoints.summed(self.entries()) if draft.kind == "budget" else now.after(entry))
        return entry

    def _store(self, now: Checkpoint) -> None:
        schema.make_schema(self._db)
        checkpoints.store(self._db, now, self._key)

    @contextmanager
    def _writing(self, *, check_clock: bool = True, rebuilding: bool = False) -> Iterator[Checkpoint]:
        """One durable transaction that starts with the write lock, so that what was read still holds at its end."""
        changes = self._db.total_changes
        with self._errors(), self._transaction():
            now = self._current()
            if check_clock:
                self._check_clock(now)
            if self._anchor is not None and not rebuilding:
                self._anchor.check(self)
            yield now
        if self._anchor is not None and self._db.total_changes != changes:
            self._anchor.follow(self)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """All that is read in here is of one moment."""
        if self._db.in_transaction:
            yield
            return
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            if self._db.in_transaction:
                self._db.execute("COMMIT")

    def _check_clock(self, before: Checkpoint) -> None:
        now, last = self._clock(), datetime.fromisoformat(before.time)
        if now < last - CLOCK_TOLERANCE:
            raise LedgerError(
                f"the clock reads {stamp(now)}, but the ledger's last entry is from {stamp(last)}; set the clock "
                f"right, or record that it was wrong with `dpdd-client log --accept-clock`"
            )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise LedgerError(f"{self._path}: {schema.explain(error)}; nothing was released") from None


def budget_body(silo: str, budget: Budget) -> dict[str, Any]:
    """What an entry says of a budget."""
    return {
        "silo": silo,
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "composition": budget.composition,
        "neighbours": events.NEIGHBOURS,
    }


def stamp(moment: datetime) -> str:
    """A time as entries have it: texts that sort as the times do."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")
