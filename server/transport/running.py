"""A whole run over the exchange: serve, wait for the silos to join, and drive the `ServerApp` until it is done."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dpdd.common.errors import ConfigError, DpddError
from dpdd.common.files.atomic import write_atomically
from dpdd.common.progress import Console
from dpdd.common.synthesis.runner import SynthesisRunner
from dpdd.server.app import run_on  # before anything is served: a signal during imports may be lost
from dpdd.server.run.folder import ROSTER, SCENARIO, STORE, keep_scenario
from dpdd.server.run.roster import Roster
from dpdd.server.run.scenario import Scenario, load_scenario
from dpdd.server.transport.coordinator import Coordinator
from dpdd.server.transport.grid import Deadline, ExchangeGrid
from dpdd.server.transport.request_queue import RequestQueue
from dpdd.server.transport.service import Address, ExchangeServer
from dpdd.server.transport.silo_grid import NobodyGrid


def deadline_of(scenario: Scenario, minutes: float | None = None) -> Deadline:
    """The scenario's, or another deadline."""
    chosen = scenario.exchange.deadline_minutes if minutes is None else minutes
    if not 0.0 <= chosen < math.inf:
        raise ConfigError(f"a deadline is 0 minutes or more, not {chosen:g}")
    return Deadline(60.0 * chosen, scenario.exchange.quorum)


def run(
    coordinator: Coordinator,
    scenario_file: Path,
    folder: Path,
    console: Console,
    *,
    address: Address,
    deadline_minutes: float | None = None,
    open_enrolment: bool = False,
    runner: SynthesisRunner | None = None,
    rehearsal: bool = True,
) -> dict[str, Any]:
    """What `metrics.json` holds in the end. Running again in the same folder asks only those who have not answered."""
    from dpdd.server.run.checks import check_before_asking

    scenario = load_scenario(str(scenario_file))
    deadline_of(scenario, deadline_minutes)
    check_before_asking(scenario)
    keep_scenario(scenario, scenario_file, folder)
    queue = RequestQueue(folder / STORE, coordinator.ledger_positions)
    try:
        with serving(coordinator, queue, address, console, open_enrolment=open_enrolment):
            return drive(
                coordinator,
                queue,
                scenario,
                folder,
                console,
                deadline_minutes=deadline_minutes,
                runner=runner,
                rehearsal=rehearsal,
            )
    finally:
        queue.close()


def drive(
    coordinator: Coordinator,
    queue: RequestQueue,
    scenario: Scenario,
    folder: Path,
    console: Console,
    *,
    deadline_minutes: float | None = None,
    runner: SynthesisRunner | None = None,
    rehearsal: bool = True,
) -> dict[str, Any]:
    """Wait for the silos to join, and run the `ServerApp` over an exchange that serves this queue."""
    deadline, started = deadline_of(scenario, deadline_minutes), time.monotonic()
    roster = wait_for_silos(coordinator, deadline, console)
    roster.save(folder / ROSTER)
    left = replace(deadline, spent=time.monotonic() - started)
    grid = ExchangeGrid(queue, roster, left, _progress_reporter(console), coordinator.registry.revoked)
    return run_on(
        grid,
        str(folder / SCENARIO),
        folder,
        runner or SynthesisRunner(),
        console,
        rehearsal=rehearsal,
        deadline_minutes=deadline_minutes,
    )


def build(coordinator: Coordinator, folder: Path, console: Console, runner: SynthesisRunner) -> dict[str, Any]:
    """Make what can be made of the releases in a run's folder. Nobody is served, and nobody asked."""
    queue = RequestQueue(folder / STORE)  # no other process is at it
    try:
        coordinator.registry.roster().save(folder / ROSTER)
        return run_on(NobodyGrid(), str(folder / SCENARIO), folder, runner, console)
    finally:
        queue.close()


@contextmanager
def serving(
    coordinator: Coordinator,
    queue: RequestQueue | None,
    address: Address,
    console: Console,
    *,
    open_enrolment: bool = False,
) -> Iterator[ExchangeServer]:
    """The exchange, up while in here; `serving.json` says where."""
    with ExchangeServer(coordinator, queue, address, open_enrolment=open_enrolment) as server:
        where = {**asdict(address), "port": server.port, "join_port": server.join_port, "pid": os.getpid()}
        write_atomically(coordinator.serving_file, json.dumps(where).encode())
        console.say(f"serving silos on {address.host}:{server.port}, new ones on {address.host}:{server.join_port}")
        if open_enrolment:
            console.say("WARNING: --loopback-demo lets anybody on this machine join as any silo")
        try:
            yield server
        finally:
            with suppress(OSError):
                coordinator.serving_file.unlink()


def wait_for_silos(coordinator: Coordinator, deadline: Deadline, console: Console) -> Roster:
    """Wait until all enrolled silos have joined, or until the deadline; those who have."""
    ends = time.monotonic() + deadline.seconds
    told: list[str] = []
    while True:
        silos = [silo for silo in coordinator.registry.silos() if not silo.revoked]
        missing = [silo.name for silo in silos if not silo.joined]
        if silos and not missing:
            break
        if time.monotonic() >= ends:
            break
        if not silos and not told:
            told = [""]
            console.say("no silo is enrolled yet: `dpdd-server enrol NAME` gives a join token")
        elif missing != told and silos:
            console.say(f"waiting for {len(missing)} of {len(silos)} silos to join: {', '.join(missing)}")
            told = missing
        time.sleep(0.5)
    roster = coordinator.registry.roster()
    if len(roster.keys) < deadline.quorum or not roster.keys:
        raise DpddError(
            f"{len(roster.keys)} silos joined within {deadline.words}, and the quorum is {deadline.quorum}"
            + (f" (not joined: {', '.join(missing)})" if missing else "")
        )
    for name in missing:
        console.say(f"  without {name}: it did not join within {deadline.words}")
    for name in sorted(coordinator.registry.revoked()):
        console.say(f"  without {name}: it is revoked")
    return roster


def _progress_reporter(console: Console) -> Any:
    """Says whom we wait for, whenever that changes."""
    last: list[list[str]] = []

    def tell(silos: list[str], of: int) -> None:
        if not last or last[-1] != silos:
            last[:] = [silos]
            shown = ", ".join(silos[:5]) + (f" and {len(silos) - 5} more" if len(silos) > 5 else "")
            console.say(f"waiting for {len(silos)} of {of} silos: {shown}")

    return tell
