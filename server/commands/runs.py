"""`run`, `resume` and `serve`: serve the exchange, ask the silos, build datasets; `submit` queues runs for `serve`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpdd.common.cli import print_json
from dpdd.common.errors import ConfigError
from dpdd.server.commands.options import open_coordinator

if TYPE_CHECKING:
    from dpdd.server.transport.coordinator import Coordinator

LOG_BYTES = 10_000_000
FILES = 1 << 14


def run(options: argparse.Namespace) -> None:
    """Run a scenario in a folder of its own."""
    from dpdd.server.run.public_data import check_public_data
    from dpdd.server.run.scenario import load_scenario, shipped

    scenario = load_scenario(options.scenario)
    check_public_data(scenario, allowed=not options.no_public_data)
    path = shipped().get(options.scenario, Path(options.scenario))
    _serve(options, path, options.out or options.coordinator / "runs" / scenario.name)


def resume(options: argparse.Namespace) -> None:
    """Run the scenario of a folder again, there."""
    from dpdd.server.run.folder import scenario_of

    scenario = scenario_of(options.folder)
    if options.offline:
        _build(options)
    else:
        _serve(options, scenario, options.folder)


def _build(options: argparse.Namespace) -> None:
    """Make the dataset from the releases that are here."""
    from dpdd.common.progress import Console
    from dpdd.common.synthesis.runner import SynthesisRunner
    from dpdd.server.transport import running

    console = Console(quiet=options.quiet or options.json)
    runner = SynthesisRunner(device=options.device, workers=options.workers)
    _show(options, running.build(open_coordinator(options), options.folder, console, runner), options.folder)


def serve(options: argparse.Namespace) -> None:
    """Keep the exchange standing, and work off the runs that are submitted."""
    from dpdd.common.progress import Console

    coordinator = _opened(options)

    from dpdd.common.synthesis.runner import SynthesisRunner
    from dpdd.server.transport import standing
    from dpdd.server.transport.service import Address

    console = Console(quiet=options.quiet)
    try:
        standing.serve(
            coordinator,
            console,
            address=Address(options.bind, options.port, options.join_port),
            open_enrolment=options.loopback_demo,
            runner=SynthesisRunner(device=options.device, workers=options.workers),
        )
    except KeyboardInterrupt:  # or SIGTERM: the way in which a server ends
        console.say("stopped; runs that are not done go on when it serves again")


def submit(options: argparse.Namespace) -> None:
    """Check a scenario, and put it into the queue."""
    from dpdd.server.run.checks import check_before_asking
    from dpdd.server.run.folder import keep_scenario
    from dpdd.server.run.public_data import check_public_data
    from dpdd.server.run.scenario import load_scenario, shipped
    from dpdd.server.transport.running import deadline_of
    from dpdd.server.transport.standing import folder_for
    from dpdd.server.transport.submitted import SubmittedRuns

    coordinator = open_coordinator(options)
    scenario = load_scenario(options.scenario)
    deadline_of(scenario, options.deadline_minutes)  # both refuse what would fail later
    check_public_data(scenario, allowed=not options.no_public_data)
    check_before_asking(scenario)
    folder = folder_for(coordinator, scenario.name, options.out)
    runs = SubmittedRuns(coordinator.submitted_file)
    try:
        waiting = [run for run in runs.runs() if run.state in ("queued", "running")]
        if folder in [run.folder for run in waiting]:
            raise ConfigError(f"{folder}: this run is in the queue already")
        keep_scenario(scenario, shipped().get(options.scenario, Path(options.scenario)), folder)
        run = runs.submit(
            scenario.name, folder, rehearsal=not options.no_rehearsal, deadline_minutes=options.deadline_minutes
        )
    finally:
        runs.close()
    print(f"run {run.number}: {run.name}, in {folder}; {len(waiting) or 'none'} before it")
    if not _stands(coordinator):
        print(f"nobody serves now: `dpdd-server serve --coordinator {options.coordinator}` works the queue off")


def _stands(coordinator: Coordinator) -> bool:
    """Whether a `dpdd-server serve` is up for this coordinator."""
    from dpdd.server.transport.request_queue import hold

    try:
        hold(coordinator.standing_lock, "").close()
    except ConfigError:
        return True
    return False


def _opened(options: argparse.Namespace) -> Coordinator:
    """The coordinator, with logs and signals as a server needs them."""
    import resource
    import signal

    from dpdd.server.transport import tls_log

    if options.loopback_demo and options.bind != "127.0.0.1":
        raise ConfigError("--loopback-demo lets anybody join: it listens on 127.0.0.1 and nowhere else")
    coordinator = open_coordinator(options)
    if _stands(coordinator):
        raise ConfigError(
            f"dpdd-server serve is up for {options.coordinator}: `dpdd-server submit SCENARIO` brings it a run "
            f"(with the --out of an earlier one, to go on with that)"
        )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # a connected silo takes one, and 1024 are usual
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, FILES)), hard))
    tls_log.follow()
    _log_to(coordinator.log_file)
    return coordinator


def _serve(options: argparse.Namespace, scenario: Path, folder: Path) -> None:
    from dpdd.common.progress import Console

    coordinator = _opened(options)

    from dpdd.common.synthesis.runner import SynthesisRunner
    from dpdd.server.transport import running
    from dpdd.server.transport.service import Address

    console = Console(quiet=options.quiet or options.json)
    metrics = running.run(
        coordinator,
        scenario,
        folder,
        console,
        address=Address(options.bind, options.port, options.join_port),
        deadline_minutes=options.deadline_minutes,
        open_enrolment=options.loopback_demo,
        runner=SynthesisRunner(device=options.device, workers=options.workers),
        rehearsal=not options.no_rehearsal,
    )
    _show(options, metrics, folder)


def _show(options: argparse.Namespace, metrics: dict[str, Any], folder: Path) -> None:
    from dpdd.server.report.summary import summary

    if options.json:
        print_json(metrics)
    else:
        print(summary(metrics, folder))


def _log_to(path: Path) -> None:
    """The exchange's log: a file beside the registry (of bounded size: strangers write it), and warnings on stderr."""
    import logging
    from logging.handlers import RotatingFileHandler

    log = logging.getLogger("dpdd.exchange")
    log.setLevel(logging.INFO)
    log.propagate = False
    kept = RotatingFileHandler(path, encoding="utf-8", maxBytes=LOG_BYTES, backupCount=4)
    shown = logging.StreamHandler()
    kept.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    shown.setFormatter(logging.Formatter("  %(message)s"))
    shown.setLevel(logging.WARNING)
    log.handlers[:] = [kept, shown]
