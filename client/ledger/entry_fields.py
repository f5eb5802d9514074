"""What the entries of a ledger must contain before anything is computed from them.

The hash chain shows that the silo wrote an entry, not that its fields make sense: another version may have written it,
or somebody who has the silo's key. A budget that is no number must end in an error, not in an answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, get_args

from dpdd.client.ledger.hash_chain import Entry
from dpdd.common.errors import LedgerError
from dpdd.common.privacy import events
from dpdd.common.privacy.filters import Composition

_LARGEST = 1e300
"""No figure of a ledger is larger, except an ε without bound."""


def read_entry(row: Sequence[Any]) -> Entry:
    """A row of the ledger's table; ValueError or TypeError where it is none."""
    try:
        body = json.loads(row[4])
    except RecursionError:
        raise ValueError("the entry is nested too deeply") from None
    if not isinstance(body, dict):
        raise TypeError("an entry's body is an object")
    return Entry(row[0], row[1], row[2], row[3], body, row[5], row[6], row[7])


def check_fields(entries: Sequence[Entry]) -> None:
    """LedgerError at the first entry whose fields are not what its kind needs."""
    for entry in entries:
        try:
            good = datetime.fromisoformat(entry.time).tzinfo is not None and _CHECKS.get(entry.kind, _free)(entry.body)
        except (ValueError, TypeError, KeyError):
            good = False
        if not good:
            raise LedgerError(f"ledger entry {entry.seq} is signed, but its fields are not those of a ledger")


def _budget(body: dict[str, Any]) -> bool:
    figures = _figure(body["epsilon"]) and _figure(body["delta"])
    return isinstance(body["silo"], str) and figures and body["composition"] in get_args(Composition)


def _reserve(body: dict[str, Any]) -> bool:
    events.from_json(body["event"])
    stages, holdout = body.get("stages", 1), body.get("holdout", "none")
    return (
        _figure(body["distance"])
        and (body["epsilon"] == float("inf") or _figure(body["epsilon"]))
        and _figure(body["delta"])
        and isinstance(body["method"], str)
        and isinstance(body["run"], str)
        and type(stages) is int
        and stages >= 1
        and isinstance(holdout, str)
        and not holdout.isspace()
    )


def _stage(body: dict[str, Any]) -> bool:
    return isinstance(body["root"], str) and type(body["stage"]) is int and _rebuilt(body)


def _commit(body: dict[str, Any]) -> bool:
    return isinstance(body["release_sha256"], str) and _rebuilt(body)


def _recovered(body: dict[str, Any]) -> bool:
    return _reserve(body) and _rebuilt(body)


def _resume(body: dict[str, Any]) -> bool:
    return isinstance(body["entry"], str) and type(body["position"]) is int


def _written_off(body: dict[str, Any]) -> bool:
    return isinstance(body["why"], str)


def _rebuilt(body: dict[str, Any]) -> bool:
    """What an entry says of the lost one that it stands for; most stand for themselves."""
    return isinstance(body.get("entry", ""), str) and type(body.get("position", 0)) is int


def _deny(body: dict[str, Any]) -> bool:
    return isinstance(body["why"], str)


def _free(_: dict[str, Any]) -> bool:
    return True


def _figure(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value <= _LARGEST  # type: ignore[operator]


_CHECKS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "open": _budget,
    "budget": _budget,
    "reserve": _reserve,
    "stage": _stage,
    "commit": _commit,
    "deny": _deny,
    "recovered": _recovered,
    "resume": _resume,
    "written-off": _written_off,
}
