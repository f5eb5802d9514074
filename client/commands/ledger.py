"""`budget` and `log`: what is spent and what is left, and the ledger's entries with their hash chain verified."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from dpdd.client.commands.options import open_silo
from dpdd.common.cli import facts, print_json, table
from dpdd.common.errors import DpddError, IntegrityError, LedgerError

if TYPE_CHECKING:
    from dpdd.client.ledger.hash_chain import Entry
    from dpdd.client.ledger.ledger import Ledger
    from dpdd.client.silo import Silo

Kept = Literal["kept", "missing", "changed"]
"""What became of a release's file in the outbox."""


def budget(options: argparse.Namespace) -> None:
    """Show the budget: spent, remaining, and every reservation."""
    silo = open_silo(options)
    ledger = silo.ledger()
    try:
        if options.accept_change:
            ledger.accept_budget(silo.settings.budget.budget())
        ledger.check_budget()
        status = ledger.status()
        entries = ledger.entries()
        trouble = _trouble(silo, ledger)
    finally:
        ledger.close()
    if options.json:
        print_json(
            {
                "silo": status.silo,
                "epsilon": status.budget.epsilon,
                "delta": status.budget.delta,
                "composition": status.budget.composition,
                "spent": status.spent,
                "remaining": status.remaining,
                "reserved": status.reserved,
                "committed": status.committed,
                "ledger_head": status.head,
            }
        )
        _raise(trouble)
        return
    print(f"silo {status.silo}: budget ε = {status.budget.epsilon:g} at δ = {status.budget.delta:g}")
    print(facts({"spent": f"ε = {status.spent:.4f}", "remaining": f"ε = {status.remaining:.4f}"}))
    rows = [
        [
            e.time[:19].replace("T", " "),
            e.body["run"],
            e.body["method"],
            f"{e.body['epsilon']:g}",
            f"{e.body['delta']:g}",
            _state(e, entries),
            e.request_id[:12],
        ]
        for e in entries
        if e.kind in ("reserve", "recovered")
    ]
    if rows:
        print()
        print(table(["when (UTC)", "run", "method", "ε", "δ", "state", "request"], rows))
        print("(releases compose: the total grows more slowly than the sum of the ε)")
    _raise(trouble)


def _trouble(silo: Silo, ledger: Ledger) -> DpddError | None:
    """What is wrong with a ledger that is older than what remembers it: what it shows is not all that was spent."""
    try:
        silo.check_newest(ledger)
    except (LedgerError, IntegrityError) as error:
        return error
    return None


def _raise(trouble: DpddError | None) -> None:
    if trouble is not None:
        raise trouble


def _state(reservation: Entry, entries: list[Entry]) -> str:
    """How much of what was reserved has been released."""
    of = reservation.body.get("stages", 1)
    parts = {e.request_id for e in entries if e.kind == "stage" and e.body["root"] == reservation.request_id}
    done = sum(e.kind == "commit" and e.request_id in parts | {reservation.request_id} for e in entries)
    if reservation.kind == "recovered":
        return f"recovered, {done} of {of} released"
    if 0 < done < of:
        return f"released {done} of {of} stages"
    return "released" if done else "reserved"


def log(options: argparse.Namespace) -> None:
    """Show all entries, after their hash chain, their signatures and the outbox were checked."""
    silo = open_silo(options)
    ledger = silo.ledger()
    try:
        if options.accept_clock:
            ledger.note("clock")
        entries = ledger.verify()
        trouble = _trouble(silo, ledger)
    finally:
        ledger.close()
    outbox = _check_outbox(silo, entries)
    if options.json:
        print_json([_as_json(entry, outbox) for entry in entries])
    else:
        rows = [
            [
                str(e.seq),
                e.time[:19].replace("T", " "),
                e.kind,
                e.request_id[:12],
                _description(e) + _lost(e, outbox),
                e.hash[:12],
            ]
            for e in entries
        ]
        print(table(["#", "when (UTC)", "entry", "request", "what", "hash"], rows))
        what = "the ledger is intact" if trouble is None else "they are intact, and not all that there were"
        print(f"{len(entries)} entries, each hashed over the one before and signed: {what}")
    lost = [f"{request_id}.release is {state}" for request_id, state in outbox.items() if state != "kept"]
    if lost:
        raise IntegrityError(
            f"{len(lost)} of {len(outbox)} releases are not in the outbox as they were made: {', '.join(lost)}; "
            f"restore {'it' if len(lost) == 1 else 'them'} to {silo.folder / 'state' / 'outbox'} from a backup or from "
            f"the coordinator's store: a release is never made a second time"
        )
    _raise(trouble)


def _check_outbox(silo: Silo, entries: list[Entry]) -> dict[str, Kept]:
    """What became of every committed release. LedgerError for a release without an entry.

    So both ends are checked: a ledger cut short at its end shows here, and so does a file that is gone.
    """
    reserved = {entry.request_id for entry in entries if entry.kind in ("reserve", "stage", "recovered")}
    for request_id in silo.outbox.ids():
        if request_id not in reserved:
            raise LedgerError(
                f"the outbox holds a release for {request_id[:12]}, but the ledger has no entry for it: "
                f"the ledger was cut short or replaced"
            )
    outbox: dict[str, Kept] = {}
    for entry in entries:
        if entry.kind == "commit":
            found = silo.outbox.sha256(entry.request_id)
            intact = found == entry.body["release_sha256"]
            outbox[entry.request_id] = "kept" if intact else "missing" if found is None else "changed"
    return outbox


def _as_json(entry: Entry, outbox: Mapping[str, Kept]) -> dict[str, Any]:
    shown = {
        "seq": entry.seq,
        "time": entry.time,
        "kind": entry.kind,
        "request": entry.request_id,
        "body": entry.body,
        "hash": entry.hash,
    }
    return {**shown, "outbox": outbox[entry.request_id]} if entry.kind == "commit" else shown


def _lost(entry: Entry, outbox: Mapping[str, Kept]) -> str:
    state = outbox[entry.request_id] if entry.kind == "commit" else "kept"
    return "" if state == "kept" else f", {state.upper()} in the outbox"


def _description(entry: Entry) -> str:
    from dpdd.common.privacy.events import describe, from_json

    body = entry.body
    match entry.kind:
        case "open" | "budget":
            return f"budget ε = {body['epsilon']:g}, δ = {body['delta']:g}, {body['composition']}"
        case "reserve" | "recovered":
            of = body.get("stages", 1)
            event = describe(from_json(body["event"])) + (f", for {of} stages" if of > 1 else "")
            return f"{body['run']}: {body['method']}, ε = {body['epsilon']:g}, {event}"
        case "stage":
            return f"stage {body['stage']} of {body['root'][:12]}, at no further cost"
        case "commit":
            return f"released, SHA-256 {body['release_sha256'][:12]}…"
        case "deny":
            return str(body["why"])
        case "clock":
            return "the operator accepts the clock"
        case "resume":
            return "the end of a recovery" + (f", for entry {body['position']}" if body["position"] else "")
        case "written-off":
            return f"the rest of the budget: {body['why']}"
        case _:
            return ""
