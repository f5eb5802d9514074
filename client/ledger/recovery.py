"""Rebuilding a ledger that was lost, or replaced by an old copy, from the releases that it paid for.

Every release states what its ledger entry set aside (`dpdd.common.wire.payment`), and is signed by this silo: what is
found in the outbox, or at the coordinator, becomes entries again (`recovered`, and `stage` and `commit` as they were).
They count as spent like any reservation, and the same request gets the same bytes again. Nothing is ever taken back.

Whether all is found is a matter of counting: the anchor, and the releases themselves, say how many requests had been
paid for. Where one is missing that nobody can rebuild, nothing is appended and nothing spent, until the operator closes
the budget for it (`written-off`). What was paid for before a recovery is never made again: a release may have left that
nobody has.

A recovery ends with `resume` entries, which stand for what else remembered the lost entries, and whose number lies
beyond all that were in use: no later entry takes a number that a release has named.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpdd.client.ledger.hash_chain import Entry
from dpdd.client.ledger.ledger_file import Draft
from dpdd.client.ledger.position import Position
from dpdd.common.privacy import events
from dpdd.common.wire.payment import Payment
from dpdd.common.wire.release import ReleaseHeader

NOT_STATED = "not-stated"
_REBUILT = ("recovered", "resume", "written-off")


@dataclass(frozen=True, eq=False)
class Found:
    """A release that this silo signed, by what it states; `where` it was found, for people."""

    release: ReleaseHeader
    sha256: str
    where: str

    @property
    def payment(self) -> Payment:
        """What was set aside for it; as far as one can tell, where software made it that did not state that."""
        release = self.release
        own = Payment(NOT_STATED, release.request_id, 0, 1, release.event, release.distance)
        return release.payment or own

    @property
    def position(self) -> Position:
        """The entry that paid."""
        return Position(self.payment.position, self.release.ledger_entry, self.payment.reservations)


@dataclass(frozen=True)
class Recovery:
    """What is to be done: entries to append, and how many reservations are missing then (None: nobody can tell)."""

    drafts: Sequence[Draft]
    ends: Sequence[Draft]
    missing: int | None

    @property
    def needed(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.drafts or self.ends)

    def written_off(self, why: str) -> Sequence[Draft]:
        """All entries, after which nothing more can be spent."""
        return [*self.drafts, Draft("written-off", "", {"why": why, "missing": self.missing}), *self.ends]


def plan_recovery(
    entries: Sequence[Entry],
    found: Sequence[Found],
    anchored: Position | None,
    told: Position | None,
    holdout: dict[str, str],
    *,
    new: bool = False,
) -> Recovery:
    """What makes the ledger with these (verified) entries whole again.

    `found` are releases of this silo that it may not know, `anchored` is where its anchor says that it ended, `told` an
    entry that its coordinator showed once. A `new` ledger takes the place of one that is gone.
    """
    books, witnesses = _Books(entries, holdout, new), [each for each in (anchored, told) if each is not None]
    for each in sorted(found, key=lambda each: (each.payment.position or math.inf, each.release.request_id)):
        books.take(each)
    positions = [each.position for each in found]
    lost = [known for known in (*witnesses, *positions) if known.sequence and not books.held_before(known)]
    if not books.drafts and not lost and not new:
        return Recovery((), (), 0)
    unexplained = [known for known in witnesses if known.sequence and not books.holds(known)]
    beyond = max((known.sequence for known in (*witnesses, *positions)), default=0)
    ends = [
        Draft("resume", "", {"entry": known.entry, "position": known.sequence}, beyond)
        for known in unexplained or [Position(0, "")]
    ]
    unvouched = new and anchored is None  # nothing says where it ended
    return Recovery(books.drafts, ends, None if unvouched else books.missing(lost, unexplained, anchored))


class _Books:
    """The ledger as it is, and as it becomes."""

    def __init__(self, entries: Sequence[Entry], holdout: dict[str, str], new: bool) -> None:
        self.drafts: list[Draft] = []
        self._holdout = holdout
        self._hashes = {entry.seq: entry.hash for entry in entries}
        self._standing = {str(entry.body["entry"]) for entry in entries if entry.body.get("entry")}
        self._stood_before = set(self._standing)
        self._roots = {entry.request_id for entry in entries if entry.kind in ("reserve", "recovered")}
        self._paid = {entry.request_id: entry.hash for entry in entries if entry.kind in ("reserve", "stage")}
        self._stages = {
            (entry.body["root"], entry.body["stage"]): entry.request_id for entry in entries if entry.kind == "stage"
        }
        self._commits = {entry.request_id: entry.body["release_sha256"] for entry in entries if entry.kind == "commit"}
        self._last_own = 0 if new else max(entry.seq for entry in entries if not _is_rebuilt(entry))
        self._counted = 0
        self._extra = sum(bool(entry.body.get("second")) for entry in entries if entry.kind == "recovered")
        self._covered = 0
        self._unstated = False

    def held_before(self, known: Position) -> bool:
        """Whether the ledger holds that entry as it is."""
        return self._hashes.get(known.sequence) == known.entry or known.entry in self._stood_before

    def holds(self, known: Position) -> bool:
        """Whether the ledger holds that entry in the end, or one that stands for it."""
        return self._hashes.get(known.sequence) == known.entry or known.entry in self._standing

    def take(self, found: Found) -> None:
        """Append what the ledger does not know of this release."""
        release, payment = found.release, found.payment
        request, entry = release.request_id, release.ledger_entry
        self._counted = max(self._counted, payment.reservations)
        self._covered = max(self._covered, payment.position if payment.reservations else 0)
        committed = self._commits.get(request)
        if committed == found.sha256 or (found.sha256 in self._roots):
            return
        self._unstated |= release.payment is None  # of stages that all were paid for, it may be one
        stage = (payment.root, payment.stage)
        if committed is not None or self._stages.get(stage, request) != request:
            self._extra += 1  # a second release for one request or stage: noise was drawn twice, so it is paid twice
            self._append("recovered", found.sha256, {**self._reservation(found, entry), "second": True})
            self._roots.add(found.sha256)
            return
        if payment.root not in self._roots:
            self._append("recovered", payment.root, self._reservation(found, "" if payment.stage else entry))
            self._roots.add(payment.root)
        if payment.stage and stage not in self._stages:
            marked = {**_stands_for(found), "from": found.where}
            self._append("stage", request, {"root": payment.root, "stage": payment.stage, **marked})
            self._stages[stage] = request
        known_elsewhere = entry in self._standing or self._paid.get(request) == entry
        stands_for = {} if known_elsewhere else _stands_for(found)
        self._append("commit", request, {"release_sha256": found.sha256, "from": found.where, **stands_for})
        self._commits[request] = found.sha256

    def missing(
        self, lost: Sequence[Position], unexplained: Sequence[Position], anchored: Position | None
    ) -> int | None:
        """How many reservations the ledger lacks in the end, by the highest count that anybody knows.

        Nobody can tell where no count is known, where the ledger went on by itself after the entries that are lost,
        where it lacks an entry that no count covers, and where a release does not state what was paid.
        """
        counted, covered = self._counted, self._covered
        if anchored is not None:
            counted, covered = max(counted, anchored.reservations), max(covered, anchored.sequence)
        forked = any(known.sequence <= self._last_own for known in lost)
        uncovered = any(known.sequence > covered for known in unexplained)
        if forked or uncovered or self._unstated or not covered:
            return None
        return max(counted - (len(self._roots) - self._extra), 0)

    def _append(self, kind: Any, request_id: str, body: dict[str, Any]) -> None:
        self.drafts.append(Draft(kind, request_id, body))
        if body.get("entry"):
            self._standing.add(body["entry"])

    def _reservation(self, found: Found, entry: str) -> dict[str, Any]:
        release, payment = found.release, found.payment
        body = {
            "method": release.method,
            "event": events.to_json(payment.event),
            "distance": payment.distance,
            "epsilon": release.guarantee.epsilon,
            "delta": release.guarantee.delta,
            "accountant": release.guarantee.accountant,
            "stages": payment.stages,
            "run": payment.run,
            "from": found.where,
            **self._holdout,
        }
        return {**body, **_stands_for(found)} if entry else body


def _stands_for(found: Found) -> dict[str, Any]:
    return {"entry": found.release.ledger_entry, "position": found.payment.position}


def _is_rebuilt(entry: Entry) -> bool:
    return entry.kind in _REBUILT or "from" in entry.body
