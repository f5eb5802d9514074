"""What the entries of a ledger say about a request."""

from __future__ import annotations

from dpdd.client.ledger.hash_chain import Entry, EntryKind
from dpdd.common.errors import PolicyError
from dpdd.common.privacy import events
from dpdd.common.privacy.filters import Spending


class NotCovered(PolicyError):
    """A later stage that no reservation covers, or that another request took."""


def find(entries: list[Entry], kind: EntryKind, request_id: str) -> Entry | None:
    """The first entry of that kind for the request."""
    return next((e for e in entries if e.kind == kind and e.request_id == request_id), None)


def paid(entries: list[Entry], request_id: str) -> Entry | None:
    """The entry that set budget aside for the request, or gave it a stage of what was set aside."""
    return find(entries, "reserve", request_id) or find(entries, "stage", request_id)


def taken_stage(entries: list[Entry], request_id: str, root: str, stage: int, spending: Spending) -> Entry | None:
    """The entry with which the request took the stage, None when the stage is free; NotCovered otherwise."""
    reserved = find(entries, "reserve", root)
    if reserved is None:
        raise NotCovered(f"stage {stage} was asked for, but stage 0 of this run was not: ask that first")
    if not 1 <= stage < reserved.body.get("stages", 1) or spendings([reserved]) != [spending]:
        raise NotCovered(f"stage {stage} is not what was reserved with stage 0 of this run (has the software changed?)")
    known = next((e for e in entries if e.kind == "stage" and (e.body["root"], e.body["stage"]) == (root, stage)), None)
    if known is not None and known.request_id != request_id:
        raise NotCovered(f"stage {stage} of this run was answered for another input already; it is answered once")
    return known


def spendings(entries: list[Entry]) -> list[Spending]:
    """What was set aside, in order."""
    return [Spending(events.from_json(e.body["event"]), e.body["distance"]) for e in entries if e.kind == "reserve"]
