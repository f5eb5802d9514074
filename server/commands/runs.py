"""`run` and `resume`: serve the exchange, ask the silos, and build the dataset."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dpdd.common.cli import print_json, table
from dpdd.common.errors import ConfigError
from dpdd.server.commands.options import open_coordinator
from dpdd.server.report.product import in_words

LOG_BYTES = 10_000_000


def run(options: argparse.Namespace) -> None:
    """Run a scenario in a folder of its own."""
    from dpdd.server.run.scenario import load_scenario, shipped

    scenario = load_scenario(options.scenario)
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


def _serve(options: argparse.Namespace, scenario: Path, folder: Path) -> None:
    import signal

    from dpdd.common.progress import Console
    from dpdd.server.transport import tls_log

    if options.loopback_demo and options.bind != "127.0.0.1":
        raise ConfigError("--loopback-demo lets anybody join: it listens on 127.0.0.1 and nowhere else")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    coordinator = open_coordinator(options)
    tls_log.follow()
    _log_to(coordinator.log_file)

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
    from dpdd.server.report.card import budget_cells

    if options.json:
        print_json(metrics)
        return
    rows = [[*budget_cells(row), row["accountant"]] for row in metrics["privacy"]]
    print(table(["silo", "ε", "δ", "accountant"], rows))
    print(f"{in_words(metrics['dataset'])}: {folder / 'dataset'}; the card: {folder / 'CARD.md'}")


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
