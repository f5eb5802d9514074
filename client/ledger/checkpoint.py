"""The ledger's checkpoint: what follows from all entries up to its head, signed, and replaced with every entry.

With it a decision needs no old entry. It is never more than a shortcut: where it is missing, behind the entries, or
where somebody else changed the file's schema, everything is verified and computed from the entries again. One that this
silo did not sign, or that names an entry which is gone, is an error.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dpdd.client.ledger.hash_chain import Entry, canonical
from dpdd.client.ledger.lookup import spending_of
from dpdd.client.ledger.position import Position
from dpdd.client.ledger.schema import schema_cookie
from dpdd.common.errors import LedgerError
from dpdd.common.privacy import filters
from dpdd.common.privacy.filters import Budget, Spent

_PREFIX = b"dpdd ledger checkpoint v1\0"
_VERSION = 1


@dataclass(frozen=True)
class Checkpoint:
    """What all entries up to `head` come to.

    `holdouts` are the holdouts that reservations were made with. `rebuilt_at` is the latest entry that ended a
    recovery: what was paid for before is never made again.
    """

    silo: str
    budget: Budget
    head: Position
    time: str
    spent: Spent = field(default_factory=Spent)
    committed: int = 0
    holdouts: tuple[str | None, ...] = ()
    rebuilt_at: int = 0

    def after(self, entry: Entry) -> Checkpoint:
        """With one entry more, which does not change the budget."""
        now = replace(self, head=replace(self.head, sequence=entry.seq, entry=entry.hash), time=entry.time)
        if entry.kind in ("reserve", "recovered"):
            declared = entry.body.get("holdout")
            return replace(
                now,
                head=replace(now.head, reservations=now.head.reservations + 1),
                spent=filters.add(self.budget, self.spent, spending_of(entry)),
                holdouts=self.holdouts if declared in self.holdouts else (*self.holdouts, declared),
            )
        if entry.kind == "commit":
            return replace(now, committed=self.committed + 1)
        if entry.kind == "resume":
            return replace(now, rebuilt_at=entry.seq)
        if entry.kind == "written-off":
            return replace(now, rebuilt_at=entry.seq, spent=replace(self.spent, closed=True))
        return now

    def encode(self, cookie: int) -> str:
        """As JSON, with the schema that it belongs to."""
        values = {**asdict(self), "spent": self.spent.as_json(), "version": _VERSION, "schema": cookie}
        return canonical(values)


def summed(entries: Sequence[Entry], budget: Budget | None = None) -> Checkpoint:
    """The checkpoint of verified entries, from scratch; under another `budget` than the recorded one, if given."""
    first = entries[0]
    budget = budget or recorded_budget(entries)
    checkpoint = Checkpoint(first.body["silo"], budget, Position(first.seq, first.hash), first.time)
    for entry in entries[1:]:
        checkpoint = checkpoint.after(entry)
    return checkpoint


def recorded_budget(entries: Iterable[Entry]) -> Budget:
    """The budget that the ledger was opened with, or the last that was accepted since."""
    *_, last = (entry.body for entry in entries if entry.kind in ("open", "budget"))
    return Budget(last["epsilon"], last["delta"], last["composition"])


def store(db: sqlite3.Connection, checkpoint: Checkpoint, key: Ed25519PrivateKey) -> None:
    """Replace the checkpoint, in the transaction of the entry that it ends with."""
    body = checkpoint.encode(schema_cookie(db))
    db.execute("INSERT OR REPLACE INTO checkpoint VALUES (1, ?, ?)", (body, key.sign(_PREFIX + _digest(body))))


def read(db: sqlite3.Connection, key: Ed25519PublicKey) -> Checkpoint | None:
    """The stored checkpoint; None when there is none that can be used. LedgerError for one that was tampered with."""
    if db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'checkpoint'").fetchone() is None:
        return None
    row = db.execute("SELECT body, signature FROM checkpoint").fetchone()
    if row is None:
        return None
    try:
        key.verify(row[1], _PREFIX + _digest(row[0]))
    except InvalidSignature:
        raise LedgerError("the ledger's checkpoint is not signed by this silo's key: it was tampered with") from None
    try:
        return _decoded(json.loads(row[0]), schema_cookie(db))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None  # by another version of this software: the entries tell


def _decoded(values: dict[str, Any], cookie: int) -> Checkpoint | None:
    if (values.pop("version"), values.pop("schema")) != (_VERSION, cookie):
        return None
    typed = {
        "budget": Budget(**values["budget"]),
        "head": Position(**values["head"]),
        "spent": Spent.from_json(values["spent"]),
        "holdouts": tuple(values["holdouts"]),
    }
    return Checkpoint(**{**values, **typed})


def _digest(body: str) -> bytes:
    return hashlib.sha256(body.encode()).digest()
