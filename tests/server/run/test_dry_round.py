"""Dry rounds on a grid in one process: who says no is left out, and below the quorum nobody spends."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from dpdd.client.app import make_app
from dpdd.client.silo import Silo
from dpdd.common import flower
from dpdd.common.errors import DpddError
from dpdd.common.progress import Console
from dpdd.scenarios.cli import main as simulate
from dpdd.scenarios.simulator.inprocess import InProcessGrid
from dpdd.scenarios.simulator.silos import roster_of, set_up
from dpdd.server.run.dry_round import RehearsalDeadline
from dpdd.server.run.pipeline import Run
from dpdd.server.run.scenario import load_scenario
from tests.scenarios.tiny_runs import releases, tiny_scenario


class Grid(InProcessGrid):
    """A grid that counts messages; `silent` silos never report in a dry round."""

    silent: frozenset[str] = frozenset()

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.sent: list[tuple[str, str]] = []

    def push_messages(self, messages: Iterable[Any]) -> Iterable[str]:
        messages = list(messages)
        heard = [message for message in messages if self.silo_of(message.metadata.dst_node_id) not in self.silent]
        list(super().push_messages(heard))
        return [message.metadata.message_id for message in messages]

    def _deliver(self, message: Any) -> Any:
        self.sent.append((message.metadata.message_type, self.silo_of(message.metadata.dst_node_id)))
        return super()._deliver(message)


class Anonymous(Grid):
    silo_of = None  # type: ignore[assignment]

    def push_messages(self, messages: Iterable[Any]) -> Iterable[str]:
        return InProcessGrid.push_messages(self, messages)

    def _deliver(self, message: Any) -> Any:
        return InProcessGrid._deliver(self, message)


def prepare(
    folder: Path, *, quorum: int = 1, kind: type[Grid] = Grid, silos: int = 3, console: Console | None = None
) -> tuple[Run, Grid, dict[str, Silo]]:
    path = folder / "scenario.toml"
    path.write_text(tiny_scenario(silos, steps=2, more=f"[exchange]\nquorum = {quorum}\n"))
    scenario = load_scenario(str(path))
    simulated = set_up(scenario, folder / "run", Console(quiet=True))
    grid = kind.of(make_app(), [silo.folder for silo in simulated])
    run = Run(scenario, folder / "run", roster_of(simulated), console or Console(quiet=True))
    run.rehearsal = RehearsalDeadline(0.2, 0.5)
    assert isinstance(grid, Grid)
    return run, grid, {silo.settings.name: silo for silo in simulated}


def again(run: Run) -> Run:
    return Run(run.scenario, run.folder, run.roster, run.console, run.runner, run.rehearsal)


def edit(silo: Silo, old: str, new: str) -> None:
    path = silo.folder / "silo.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_everybody_reports_before_anybody_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, grid, silos = prepare(tmp_path, console=Console())
    run.execute(grid)
    assert [kind for kind, _ in grid.sent] == [flower.PLAN] * 3 + [flower.ACTION] * 3
    assert "east, north, south  would answer  10  1e-05" in capsys.readouterr().err
    assert releases(run.folder).keys() == silos.keys()
    grid.sent.clear()
    again(run).execute(grid)  # all releases are here: nobody needs to say what it would do
    assert {kind for kind, _ in grid.sent} == {flower.ACTION}


def test_a_silo_that_would_refuse_is_left_out_until_it_would_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, grid, silos = prepare(tmp_path, quorum=2, console=Console())
    edit(silos["east"], '"Trouser"', '"Trousers"')
    run.execute(grid)
    said = capsys.readouterr().err
    assert "would refuse (not allowed)" in said and said.count("without east") == 1
    assert "only east has:       Trousers" in said and "only the scenario:   Trouser\n" in said
    assert (flower.ACTION, "east") not in grid.sent and "east" not in releases(run.folder)
    card = json.loads((run.folder / "card.json").read_text())
    assert "class list is not this silo's" in json.dumps(card["silos_without_release"])
    edit(silos["east"], '"Trousers"', '"Trouser"')
    grid.sent.clear()
    again(run).execute(grid)
    assert grid.sent[0] == (flower.PLAN, "east") and (flower.PLAN, "north") not in grid.sent
    assert "east" in releases(run.folder)
    assert json.loads((run.folder / "card.json").read_text())["silos_without_release"] == {}


def test_below_the_quorum_nobody_is_asked_to_spend(tmp_path: Path) -> None:
    run, grid, silos = prepare(tmp_path, quorum=3)
    edit(silos["north"], 'methods = ["dp-merf"]', "methods = []")
    ledgers = {name: (silo.folder / "state" / "ledger.sqlite").read_bytes() for name, silo in silos.items()}
    with pytest.raises(DpddError, match=r"2 of 3 silos would answer, and the quorum is 3 \(north: would refuse \(not"):
        run.execute(grid)
    assert {kind for kind, _ in grid.sent} == {flower.PLAN} and releases(run.folder) == {}
    assert ledgers == {name: (silo.folder / "state" / "ledger.sqlite").read_bytes() for name, silo in silos.items()}
    without = again(run)
    without.rehearsal = None
    without.execute(grid)
    assert releases(run.folder).keys() == {"east", "south"}


def test_who_says_nothing_is_asked_all_the_same_above_the_quorum(tmp_path: Path) -> None:
    run, grid, _ = prepare(tmp_path, quorum=2)
    grid.silent = frozenset({"south"})
    run.execute(grid)
    assert releases(run.folder).keys() == {"east", "north", "south"}


def test_who_says_nothing_does_not_count_for_the_quorum(tmp_path: Path) -> None:
    run, grid, _ = prepare(tmp_path, quorum=3)
    grid.silent = frozenset({"south"})
    with pytest.raises(DpddError, match=r"2 of 3 .*south: did not report within"):
        run.execute(grid)
    assert releases(run.folder) == {}


def test_a_silo_in_trouble_reports_nothing_and_says_not_why(tmp_path: Path) -> None:
    run, grid, silos = prepare(tmp_path, quorum=3)
    (silos["east"].folder / "state" / "ledger.sqlite").write_bytes(b"not a ledger")
    with pytest.raises(DpddError, match=r"east: the silo could not answer; its own log says why\)"):
        run.execute(grid)


def test_an_engine_without_names_rehearses_too(tmp_path: Path) -> None:
    run, grid, silos = prepare(tmp_path, quorum=2, kind=Anonymous)
    edit(silos["east"], '"Trouser"', '"Trousers"')
    run.execute(grid)
    assert releases(run.folder).keys() == {"north", "south"} and "east" in run.missing


def test_the_simulator_can_do_without(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text(tiny_scenario(2, steps=2))
    command = ["run", str(path), "--out", str(tmp_path / "run")]
    assert simulate([*command, "--no-rehearsal"]) == 0
    assert "would answer" not in capsys.readouterr().err
    assert simulate([*command, "--fresh"]) == 0
    assert "would answer" in capsys.readouterr().err
