"""`request` and `import`: silos without a network get their requests and give their releases as files."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dpdd.common.cli import table
from dpdd.common.errors import ConfigError, WireError
from dpdd.server.commands.options import open_coordinator

if TYPE_CHECKING:
    from dpdd.server.run.roster import Roster
    from dpdd.server.transport.coordinator import Coordinator


def request(options: argparse.Namespace) -> None:
    """Write the request files of the stage that is to be answered next."""
    from dpdd.common.progress import Console
    from dpdd.server.run.by_file import open_stage, write_requests
    from dpdd.server.run.checks import check_before_asking
    from dpdd.server.run.folder import keep_scenario
    from dpdd.server.run.pipeline import Run
    from dpdd.server.run.public_data import check_public_data
    from dpdd.server.run.scenario import load_scenario, shipped

    coordinator = open_coordinator(options)
    scenario = load_scenario(options.scenario)
    folder = options.folder or options.coordinator / "runs" / scenario.name
    check_public_data(scenario, allowed=not options.no_public_data)
    check_before_asking(scenario)
    keep_scenario(scenario, shipped().get(options.scenario, Path(options.scenario)), folder)
    silos = [silo.name for silo in coordinator.registry.silos() if not silo.revoked]
    if silos:
        scenario.privacy.check_silos(silos)
    run = Run(scenario, folder, coordinator.registry.roster(), Console(quiet=True))
    with run.store() as store:
        stage = open_stage(run, store, silos, options.stage)
    if stage is None:
        print(f"all silos have answered; `dpdd-server resume {folder} --offline` builds the dataset")
        return
    written = write_requests(stage, options.out)
    for group in stage.groups:
        coordinator.ledger_positions.put(group.request.id, silos)
    rows = [
        [str(path), ", ".join(sorted(group.silos)) or "all others", f"{group.request.epsilon:g}"]
        for path, group in written.items()
    ]
    print(table(["request", "for", "ε"], rows))
    if stage.missing:
        print(f"stage {stage.number} is not answered by {', '.join(stage.missing)}")
    print(f"next: `dpdd-client answer` makes a release of each, and `dpdd-server import {folder} FILE` takes it")


def take(options: argparse.Namespace) -> None:
    """Verify signed releases, and keep them in the run's store."""
    from dpdd.common.wire.release import stated
    from dpdd.server.run.by_file import take_release
    from dpdd.server.run.folder import STORE, scenario_of
    from dpdd.server.run.scenario import load_scenario
    from dpdd.server.run.store import SecondRelease, Store

    coordinator = open_coordinator(options)
    scenario = load_scenario(str(scenario_of(options.folder)))
    roster, given = _roster(options, coordinator)
    store = Store(options.folder / STORE)
    try:
        for path in options.files:
            try:
                release = take_release(path, scenario, store, roster)
            except SecondRelease:
                second = stated(path)  # its signature was checked
                for sentence in coordinator.ledger_positions.second(second.silo, second.request_id):
                    store.warn(second.silo, sentence)
                raise
            digest = store.digest(release.request_id, release.silo)
            assert digest is not None
            for sentence in coordinator.ledger_positions.note(options.folder / STORE, digest, release.header):
                store.warn(release.silo, sentence)
                print(f"warning: {sentence}")
            if release.silo == given:
                coordinator.registry.add_key(given, roster.key_of(given))  # after a release that it verifies
            print(f"{path}: the release of {release.silo}, signed; ε = {release.guarantee.epsilon:g}")
    finally:
        store.close()


def _roster(options: argparse.Namespace, coordinator: Coordinator) -> tuple[Roster, str | None]:
    """The silos whose keys are known, with the one that was given."""
    from dpdd.common.wire.parsing import check_name
    from dpdd.server.run.roster import Roster

    known = coordinator.registry.roster()
    if options.silo is None and options.key is None:
        return known, None
    if options.silo is None or options.key is None:
        raise ConfigError("--silo and --key go together: the name of a silo, and its public key")
    try:
        key, name = bytes.fromhex(options.key), check_name("silo name", options.silo)
    except (ValueError, WireError):
        key = b""
    if len(key) != 32:
        raise ConfigError("--key is a public key as `dpdd-client init` shows it (64 hexadecimal digits), --silo a name")
    if name in coordinator.registry.revoked():
        raise ConfigError(f"silo {name} is revoked: its releases are not taken")
    if known.keys.get(name, key) != key:
        raise ConfigError(f"silo {name} has another public key in the registry than the one given")
    return Roster({**known.keys, name: key}), name
