"""A standing exchange: silos join and stay connected, and submitted runs are worked off one after the other."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from dpdd.common.config import one_line
from dpdd.common.errors import DpddError
from dpdd.common.progress import Console
from dpdd.common.synthesis.runner import SynthesisRunner
from dpdd.server.run.folder import SCENARIO, STORE
from dpdd.server.run.scenario import load_scenario
from dpdd.server.transport.coordinator import Coordinator
from dpdd.server.transport.request_queue import RequestQueue, hold
from dpdd.server.transport.running import drive, serving
from dpdd.server.transport.service import Address, ExchangeServer
from dpdd.server.transport.submitted import SubmittedRun, SubmittedRuns

log = logging.getLogger("dpdd.exchange")

POLL_SECONDS = 0.5


def serve(
    coordinator: Coordinator,
    console: Console,
    *,
    address: Address,
    open_enrolment: bool = False,
    runner: SynthesisRunner | None = None,
) -> None:
    """Serve until KeyboardInterrupt. A run that fails is reported, and the next one starts."""
    lock = hold(coordinator.standing_lock, f"{coordinator.folder}: another dpdd-server serves this folder")
    runs = SubmittedRuns(coordinator.submitted_file)
    told = False
    try:
        with serving(coordinator, None, address, console, open_enrolment=open_enrolment) as server:
            while True:
                run = runs.take_next()
                if run is not None:
                    _work(coordinator, server, runs, run, console, runner or SynthesisRunner())
                    told = False
                elif not told:
                    console.say("no run is queued: `dpdd-server submit SCENARIO` brings one")
                    told = True
                else:
                    time.sleep(POLL_SECONDS)
    finally:
        runs.close()
        lock.close()


def _work(
    coordinator: Coordinator,
    server: ExchangeServer,
    runs: SubmittedRuns,
    run: SubmittedRun,
    console: Console,
    runner: SynthesisRunner,
) -> None:
    """Make one run; whatever becomes of it is noted."""
    console.say(f"run {run.number}: {run.name}, in {run.folder}")
    try:
        _run(coordinator, server, run, console, runner)
        runs.done(run)
        console.say(f"run {run.number}: {run.name} is done")
    except KeyboardInterrupt:
        runs.put_back(run)
        raise
    except Exception as error:  # one run's trouble is not the next one's
        sentence = one_line(error) or type(error).__name__
        if not isinstance(error, DpddError | OSError):
            log.exception("run %d, %s, failed", run.number, run.name)
            sentence = (
                f"unexpected {type(error).__name__}: {sentence}; this is a bug in dpdd, its log has the traceback"
            )
        runs.failed(run, sentence)
        console.say(f"run {run.number}: {run.name} failed: {sentence}")


def _run(
    coordinator: Coordinator, server: ExchangeServer, run: SubmittedRun, console: Console, runner: SynthesisRunner
) -> None:
    scenario = load_scenario(str(run.folder / SCENARIO))
    queue = RequestQueue(run.folder / STORE, coordinator.ledger_positions)
    try:
        server.switch(queue)
        drive(
            coordinator,
            queue,
            scenario,
            run.folder,
            console,
            deadline_minutes=run.deadline_minutes,
            runner=runner,
            rehearsal=run.rehearsal,
        )
    finally:
        server.switch(None)
        queue.close()


def folder_for(coordinator: Coordinator, name: str, out: Path | None) -> Path:
    """Where a submitted run goes; absolute, since the server may have been started elsewhere."""
    return (out or coordinator.folder / "runs" / name).resolve()
