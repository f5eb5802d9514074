"""`status`: the silos, what was asked, what came, and who is awaited."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpdd.common.cli import facts, print_json, table
from dpdd.common.errors import ConfigError
from dpdd.server.commands.options import open_coordinator

if TYPE_CHECKING:
    from dpdd.server.run.store import Asked
    from dpdd.server.transport.coordinator import Coordinator
    from dpdd.server.transport.registry import SiloEntry
    from dpdd.server.transport.submitted import SubmittedRun

_INDEX = Path("store", "index.sqlite")
MOST_STAGES = 8
"""Of so many stages each has lines of its own."""


def status(options: argparse.Namespace) -> None:
    """Show who is enrolled, what was asked and who is awaited."""
    coordinator = open_coordinator(options)
    silos = coordinator.registry.silos()
    serving = coordinator.serving()
    runs = {str(folder): _asked(folder) for folder in _run_folders(options)}
    queue, warnings = _submitted(coordinator), coordinator.warnings()
    if options.json:
        print_json(
            {
                "authority": coordinator.authority.fingerprint.hex(),
                "serving": serving,
                "warnings": warnings,
                "silos": [
                    {
                        "name": silo.name,
                        "state": silo.state,
                        "certificate_expires": _expires(silo),
                        "last_seen": silo.last_seen,
                        "doing": silo.doing,
                        **_ledger(coordinator, silo.name),
                    }
                    for silo in silos
                ],
                "queue": [
                    {
                        "number": run.number,
                        "name": run.name,
                        "folder": str(run.folder),
                        "state": run.state,
                        "sentence": run.sentence,
                        "changed": run.changed,
                    }
                    for run in queue
                ],
                "runs": {
                    name: [
                        {
                            "request": row.request_id,
                            "stage": stage,
                            "silo": row.silo,
                            "state": row.state,
                            "changed": row.changed,
                        }
                        for row, stage in rows
                    ]
                    for name, rows in runs.items()
                },
            }
        )
        return
    where = (
        f"{serving['host']}:{serving['port']} (new silos: {serving['join_port']})" if serving else "no run is serving"
    )
    print(facts({"authority": coordinator.authority.fingerprint.hex(), "serving": where}))
    for warning in warnings:
        print(f"note: {warning}")
    if silos:
        print()
        print(
            table(
                ["silo", "state", "last seen (UTC)", "doing", "certificate until"],
                [
                    [
                        silo.name,
                        silo.state,
                        (silo.last_seen or "never")[:19].replace("T", " "),
                        silo.doing,
                        (_expires(silo) or "")[:10],
                    ]
                    for silo in silos
                ],
            )
        )
    for silo in silos:
        for sentence in coordinator.ledger_positions.forks(silo.name):
            print(f"WARNING, a fork: {sentence}")
    if queue:
        print()
        print(
            table(
                ["run", "name", "state", "since (UTC)", "folder"],
                [
                    [str(run.number), run.name, _state(run), run.changed[:19].replace("T", " "), str(run.folder)]
                    for run in queue
                ],
            )
        )
    for name, rows in runs.items():
        print(f"\n{name}")
        print(_asked_table(rows) if rows else "nothing was asked yet")
        awaited = sorted({row.silo for row, _ in rows if _awaited(row)} - coordinator.registry.revoked())
        print(f"awaited: {', '.join(awaited)}" if awaited else "nobody is awaited")


def _expires(silo: SiloEntry) -> str | None:
    """When a silo's certificate ends, if it has one."""
    return None if silo.certificate_life is None else silo.certificate_life[1].isoformat(timespec="seconds")


def _ledger(coordinator: Coordinator, silo: str) -> dict[str, Any]:
    """How far a silo's ledger is known, and what does not fit together in it."""
    highest, forks = coordinator.ledger_positions.highest(silo), coordinator.ledger_positions.forks(silo)
    return {"ledger_entries": highest.sequence if highest else None, "forks": forks}


def _submitted(coordinator: Coordinator) -> list[SubmittedRun]:
    """The runs that were submitted to a standing server."""
    from dpdd.server.transport.submitted import SubmittedRuns

    if not coordinator.submitted_file.exists():
        return []
    runs = SubmittedRuns(coordinator.submitted_file)
    try:
        return runs.runs()
    finally:
        runs.close()


def _state(run: SubmittedRun) -> str:
    return f"{run.state}: {run.sentence}" if run.sentence else run.state


def _run_folders(options: argparse.Namespace) -> list[Path]:
    """The run that was named, or all in the coordinator's folder."""
    if options.folder is None:
        return sorted(index.parent.parent for index in (options.coordinator / "runs").glob(f"*/{_INDEX}"))
    if not (options.folder / _INDEX).exists():
        raise ConfigError(f"{options.folder}: this is not a run's folder (there is no store in it)")
    return [options.folder]


def _asked(folder: Path) -> list[tuple[Asked, int]]:
    """What was asked in a run, and in which stage of its method."""
    from dpdd.common.wire.request import decode_request
    from dpdd.server.run.store import Store

    store = Store(folder / "store")
    try:
        rows = store.asked()
        stages = {name: decode_request(store.request(name) or b"").stage for name in {row.request_id for row in rows}}
    finally:
        store.close()
    return [(row, stages[row.request_id]) for row in rows]


def _asked_table(rows: Sequence[tuple[Asked, int]]) -> str:
    """A line for each request of a silo; of many rounds, one for those in a row that a silo answered."""
    header = ["request", "stage", "silo", "state", "since (UTC)"]
    if len({stage for _, stage in rows}) <= MOST_STAGES:
        return table(header, [_cells(row, str(stage)) for row, stage in rows])
    lines = []
    by_silo = sorted(rows, key=lambda each: (each[0].silo, each[1]))
    for _, group in groupby(by_silo, key=lambda each: (each[0].silo, _words(each[0]))):
        members = list(group)
        (first, low), (last, high) = members[0], members[-1]
        if low == high:
            lines.append(_cells(first, str(low)))
        else:
            few = "" if len(members) == high - low + 1 else f" ({len(members)} of them)"
            lines.append(["–", f"{low}-{high}{few}", *_cells(last, "")[2:]])
    return table(header, lines)


def _cells(row: Asked, stage: str) -> list[str]:
    return [row.request_id[:16], stage, row.silo, _words(row), row.changed[:19].replace("T", " ")]


def _awaited(row: Asked) -> bool:
    from dpdd.server.transport.request_queue import settled

    return not settled(row)


def _words(row: Asked) -> str:
    from dpdd.common.wire.answer import Refusal, decode_answer

    answer = decode_answer(row.refusal) if row.state == "refused" and row.refusal is not None else None
    return f"refused ({answer.reason.words}): {answer.message}" if isinstance(answer, Refusal) else row.state
