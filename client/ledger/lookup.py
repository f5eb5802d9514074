"""Single entries by index. Each is verified by itself: that it is the silo's, and has the fields of its kind."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from dpdd.client.ledger.entry_fields import check_fields, read_entry
from dpdd.client.ledger.hash_chain import Entry, verify_entry
from dpdd.common.errors import LedgerError, PolicyError
from dpdd.common.privacy import events
from dpdd.common.privacy.filters import Spending

_EACH = "kind IN ('reserve', 'stage', 'commit')"
_REBUILT = "kind IN ('recovered', 'stage', 'commit', 'resume')"
"""SQLite uses an index of some rows only where a query repeats its condition word by word."""


class NotCovered(PolicyError):
    """A later stage that no reservation covers, or that another request took."""


class Lookup:
    """Finds entries in an open ledger."""

    def __init__(self, db: sqlite3.Connection, key: Ed25519PublicKey) -> None:
        self._db, self._key = db, key

    def last(self) -> Entry | None:
        """The ledger's end."""
        return self._one("1 ORDER BY seq DESC LIMIT 1")

    def at(self, sequence: int) -> Entry | None:
        """The entry with that number."""
        return self._one("seq = ?", sequence)

    def reservation(self, request_id: str) -> Entry | None:
        """The entry that set budget aside for a request, when it was asked or when the ledger was rebuilt."""
        return self._one(f"request_id = ? AND {_EACH} AND kind = 'reserve'", request_id) or self._one(
            "request_id = ? AND kind = 'recovered'", request_id
        )

    def stage(self, request_id: str) -> Entry | None:
        """The entry that gave a request its stage."""
        return self._one(f"request_id = ? AND {_EACH} AND kind = 'stage'", request_id)

    def paid(self, request_id: str) -> Entry | None:
        """The entry that set budget aside for the request, or gave it a stage of what was set aside."""
        return self.reservation(request_id) or self.stage(request_id)

    def commit(self, request_id: str) -> Entry | None:
        """The entry that names the release of a request."""
        return self._one(f"request_id = ? AND {_EACH} AND kind = 'commit'", request_id)

    def decision(self, request_id: str) -> Entry | None:
        """The operator's last word on a request."""
        return self._one("request_id = ? AND kind IN ('approve', 'deny') ORDER BY seq DESC LIMIT 1", request_id)

    def standing_for(self, entry: str) -> Entry | None:
        """The entry that stands for a lost one with that hash, since the ledger was rebuilt."""
        return self._one(f"json_extract(body, '$.entry') = ? AND {_REBUILT} LIMIT 1", entry)

    def taken_stage(self, request_id: str, root: str, stage: int, spending: Spending) -> Entry | None:
        """The entry with which the request took the stage, None when the stage is free; NotCovered otherwise."""
        reserved = self.reservation(root)
        if reserved is None:
            raise NotCovered(f"stage {stage} was asked for, but stage 0 of this run was not: ask that first")
        if not 1 <= stage < reserved.body.get("stages", 1) or spending_of(reserved) != spending:
            raise NotCovered(
                f"stage {stage} is not what was reserved with stage 0 of this run (has the software changed?)"
            )
        known = self._one(
            "json_extract(body, '$.root') = ? AND json_extract(body, '$.stage') = ? AND kind = 'stage'", root, stage
        )
        if known is not None and known.request_id != request_id:
            raise NotCovered(f"stage {stage} of this run was answered for another input already; it is answered once")
        return known

    def unpaid(self, request_ids: Iterable[str]) -> list[str]:
        """Those of the requests for which no budget was set aside."""
        return [request_id for request_id in request_ids if self.paid(request_id) is None]

    def paid_since(self, time: str, most: int) -> int:
        """How many requests were paid for after `time`, as far as `most`."""
        rows = self._db.execute(
            "SELECT count(*) FROM (SELECT 1 FROM entries WHERE time > ? AND kind IN ('reserve', 'recovered') LIMIT ?)",
            (time, most),
        )
        return int(rows.fetchone()[0])

    def _one(self, where: str, *values: Any) -> Entry | None:
        row = self._db.execute(f"SELECT * FROM entries WHERE {where}", values).fetchone()
        if row is None:
            return None
        try:
            entry = read_entry(row)
        except (ValueError, TypeError):
            raise LedgerError(f"ledger entry {row[0]} is not readable: the ledger was tampered with") from None
        verify_entry(entry, self._key)
        check_fields([entry])
        return entry


def spending_of(entry: Entry) -> Spending:
    """What a reservation set aside."""
    return Spending(events.from_json(entry.body["event"]), entry.body["distance"])
