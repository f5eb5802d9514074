"""Rounds: closed once and for good, with those who answered in time; who drops out is waited for or skipped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message

from dpdd.client.app import make_app
from dpdd.client.silo import Silo
from dpdd.common.errors import ConfigError, DpddError, IntegrityError
from dpdd.common.progress import Console
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.wire.request import ReleaseRequest, decode_request
from dpdd.scenarios.simulator.inprocess import InProcessGrid
from dpdd.scenarios.simulator.silos import set_up
from dpdd.server.cli import main as server
from dpdd.server.report.rounds import ranges
from dpdd.server.report.verification import checked_run
from dpdd.server.run import rounds
from dpdd.server.run.by_file import open_stage
from dpdd.server.run.pipeline import Run
from dpdd.server.run.roster import Roster
from dpdd.server.run.scenario import load_scenario
from dpdd.server.run.store import Store
from dpdd.server.transport.silo_grid import NobodyGrid
from tests.server.transport.soak_rounds import scenario

ROUNDS = 6
SKIP = 'dropouts = "skip"\nround_minutes = 1'


class Grid(InProcessGrid):
    """A grid like the exchange: who is `away` in a round says nothing, and `late` comes when the round is closed."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.away: set[tuple[str, int]] = set()
        self.late: set[tuple[str, int]] = set()
        self.waited_for: list[tuple[int, list[str]]] = []
        self.withdrawn: list[tuple[int, str]] = []
        self.kept: list[Message] = []
        self.store: Path

    def _of(self, message: Message) -> tuple[str, int]:
        return self.silo_of(message.metadata.dst_node_id), int(message.metadata.group_id)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Those who are not waited for: most of the time they are still away when the round is closed."""
        messages = list(messages)
        self.kept += [message for message in messages if self._of(message) in self.late]
        return super().push_messages(
            [message for message in messages if self._of(message) not in self.away | self.late]
        )

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        messages = list(messages)
        self.waited_for.append((self._of(messages[0])[1], sorted(self._of(each)[0] for each in messages)))
        for message in messages:
            if self._of(message) in self.away | self.late:
                assert timeout == 60.0
                self.kept += [message] if self._of(message) in self.late else []
                yield Message(Error(1001, "did not answer in time"), reply_to=message)
            else:
                yield self._deliver(message)

    def withdraw(self, request_id: str, silos: Iterable[str]) -> None:
        """The round is closed; and then comes what is late."""
        from dpdd.common import flower
        from dpdd.common.wire.answer import decode_answer

        store = Store(self.store)
        try:
            stage = decode_request(store.request(request_id) or b"").stage
            self.withdrawn += [(stage, silo) for silo in silos]
            for message in self.kept:
                reply = self._deliver(message)
                answer: Any = decode_answer(flower.unpack(reply.content, "dpdd.v1.Answer"))
                store.add(answer.data, decode_answer_request(message), self.roster)
            self.kept = []
        finally:
            store.close()

    roster: Roster


def decode_answer_request(message: Message) -> str:
    from dpdd.common import flower

    return decode_request(flower.unpack(message.content, "dpdd.v1.ReleaseRequest")).id


def prepare(folder: Path, exchange: str = SKIP, seed: int = 7) -> tuple[Run, Grid]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "soak.toml").write_text(
        scenario(ROUNDS, 1.0, exchange).replace("records_per_silo = 200", "records_per_silo = 20")
    )
    silos = set_up(load_scenario(str(folder / "soak.toml")), folder, Console(quiet=True), noise_seed=seed)
    grid = Grid.of(make_app(), [silo.folder for silo in silos])
    assert isinstance(grid, Grid)
    grid.roster, grid.store = Roster({silo.settings.name: silo.public_key for silo in silos}), folder / "run" / "store"
    return again(folder, grid), grid


def again(folder: Path, grid: Grid) -> Run:
    """The same run, as a new process would start it."""
    grid.waited_for, grid.withdrawn = [], []
    return Run(
        load_scenario(str(folder / "soak.toml")), folder / "run", grid.roster, Console(quiet=True), rehearsal=None
    )


def took_part(folder: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / "run" / "card.json").read_text())["rounds"]["took_part"]
    return found


def pixels(folder: Path) -> bytes:
    return LabelledSet.load(folder / "run" / "dataset").records.tobytes()


def stages_of(folder: Path, silo: str) -> list[int]:
    """The stages that a silo's ledger has, in their order; it has one reservation."""
    ledger = Silo(folder / "silos" / silo).ledger()
    try:
        entries = list(ledger.entries())
    finally:
        ledger.close()
    assert sum(entry.kind == "reserve" for entry in entries) == 1
    assert len({entry.request_id for entry in entries if entry.kind == "commit"}) == sum(
        e.kind == "commit" for e in entries
    )
    return [0, *(int(entry.body["stage"]) for entry in entries if entry.kind == "stage")]


def test_ranges() -> None:
    assert ranges([]) == "" and ranges([3]) == "4" and ranges([0, 1, 3, 5, 6]) == "1-2, 4, 6-7"


def test_who_drops_out_is_skipped_and_takes_part_again_where_the_others_are(tmp_path: Path) -> None:
    run, grid = prepare(tmp_path)
    grid.away, grid.late = {("east", 2), ("east", 3)}, {("east", 4)}
    run.execute(grid)
    everybody, others = ["east", "north", "south"], ["north", "south"]
    assert grid.waited_for == [(0, everybody), (1, everybody), (2, everybody), (3, others), (4, others), (5, everybody)]
    assert grid.withdrawn == [(2, "east"), (3, "east"), (4, "east")]
    assert took_part(tmp_path) == {"east": "1-2, 6", "north": "1-6", "south": "1-6"}
    assert stages_of(tmp_path, "east") == [0, 1, 4, 5], "the late answer is paid for, and none is given twice"
    text = " ".join((tmp_path / "run" / "CARD.md").read_text().split())
    assert "silos that dropped out were skipped: north, south took part in all; east in 1-2, 6." in text
    assert server(["verify", str(tmp_path / "run")]) == 0
    before = pixels(tmp_path)
    again(tmp_path, grid).execute(grid)
    assert not grid.waited_for and pixels(tmp_path) == before, "no silo is asked, and the late release stays unused"
    again(tmp_path, grid).execute(NobodyGrid())
    assert pixels(tmp_path) == before
    other, all_there = prepare(tmp_path / "other")
    other.execute(all_there)
    assert pixels(tmp_path / "other") != before


def test_who_misses_the_first_round_may_come_later(tmp_path: Path) -> None:
    run, grid = prepare(tmp_path)
    grid.late = {("east", 0)}
    grid.away = {("north", 1)}
    run.execute(grid)
    assert took_part(tmp_path) == {"east": "3-6", "north": "1, 3-6", "south": "1-6"}
    assert run.missing == {}
    assert stages_of(tmp_path, "east") == [0, 2, 3, 4, 5]
    assert server(["verify", str(tmp_path / "run")]) == 0


def test_a_run_that_dies_goes_on_with_the_rounds_that_it_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops right after each of the durable steps; the closed rounds are not asked about again."""
    whole, everybody = prepare(tmp_path / "whole")
    everybody.away = {("east", 2)}
    whole.execute(everybody)
    run, grid = prepare(tmp_path / "again")
    grid.away = {("east", 2)}
    original, closings = Store.close_round, [0]

    class Died(BaseException):
        pass

    def dies(store: Store, took_part: Any) -> None:
        closings[0] += 1
        if closings[0] in (2, 6):
            raise Died  # before it is closed
        original(store, took_part)
        if closings[0] in (4, 8):
            raise Died  # and after

    monkeypatch.setattr(Store, "close_round", dies)
    asked: list[int] = []
    for _ in range(4):
        with pytest.raises(Died):
            run.execute(grid)
        asked += [number for number, _ in grid.waited_for]
        run = again(tmp_path / "again", grid)
    run.execute(grid)
    asked += [number for number, _ in grid.waited_for]
    assert asked == [0, 1, 2, 3, 4, 5], "what was answered once is not asked again, and nothing is left out"
    assert took_part(tmp_path / "again") == took_part(tmp_path / "whole")
    assert pixels(tmp_path / "again") == pixels(tmp_path / "whole")


def test_who_waits_stops_rather_than_going_on_without_a_silo(tmp_path: Path) -> None:
    run, grid = prepare(tmp_path, 'dropouts = "wait"')
    grid.away = {("east", 3)}
    grid_waits = Grid.send_and_receive

    def answers(self: Grid, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        assert timeout is None, "the deadline is the exchange's"
        return grid_waits(self, messages, timeout=60.0)

    grid.send_and_receive = answers.__get__(grid)  # type: ignore[method-assign]
    with pytest.raises(DpddError, match=r"round 4 of 6 waits for silos \(east: did not answer in time\).*resume"):
        run.execute(grid)
    with pytest.raises(DpddError, match="round 4 of 6 waits for silos"):  # by file there is nobody to wait for, either
        again(tmp_path, grid).execute(NobodyGrid())
    grid.away = set()
    again(tmp_path, grid).execute(grid)
    assert took_part(tmp_path) == dict.fromkeys(("east", "north", "south"), "1-6")
    assert grid.waited_for == [(3, ["east"]), (4, ["east", "north", "south"]), (5, ["east", "north", "south"])]


def test_a_silo_that_could_not_answer_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, grid = prepare(tmp_path, 'dropouts = "wait"')
    pauses: list[float] = []
    monkeypatch.setattr(rounds.time, "sleep", pauses.append)
    fails = [2]

    def answers(messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        for message in messages:
            if grid._of(message) == ("east", 3) and fails[0]:
                fails[0] -= 1
                yield Message(Error(1000, "the silo could not answer"), reply_to=message)
            else:
                yield grid._deliver(message)

    grid.send_and_receive = answers  # type: ignore[method-assign, assignment]
    run.execute(grid)
    assert pauses == list(rounds.PAUSES[:2]) and took_part(tmp_path)["east"] == "1-6"


def test_rounds_that_do_not_lead_where_silos_were_asked_are_noticed(tmp_path: Path) -> None:
    run, grid = prepare(tmp_path)
    run.execute(grid)
    path = tmp_path / "run" / "card.json"
    honest = json.loads(path.read_text())
    rows = {row["silo"]: row for row in honest["silos"]}

    def verdict(expected: str, **changes: Any) -> None:
        path.write_text(json.dumps({**honest, **changes}))
        with pytest.raises(IntegrityError, match=expected):
            checked_run(tmp_path / "run")

    told = {**honest["rounds"], "took_part": {**honest["rounds"]["took_part"], "east": "1-5"}}
    verdict("the card has east in rounds 1-5, and its releases are of 1-6", rounds=told)
    left_out = {**rows["east"], "release_sha256": rows["east"]["release_sha256"][:-3], "releases": 3}
    left_out["event"] = [{**rows["east"]["event"][0], "releases": 3}]
    left_out["noise_distance"] = rows["east"]["noise_distance"] / 2.0
    told = {**honest["rounds"], "took_part": {**honest["rounds"]["took_part"], "east": "1-3"}}
    verdict("round 5 was asked with another input", rounds=told, silos=[left_out, rows["north"], rows["south"]])
    path.write_text(json.dumps(honest))
    assert server(["verify", str(tmp_path / "run")]) == 0


def test_a_run_whose_input_changed_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silos answer a stage for one input: if the rounds lead elsewhere now, nothing more is asked."""
    run, grid = prepare(tmp_path)
    grid.away = {(silo, 3) for silo in ("east", "north", "south")}
    monkeypatch.setattr(rounds.time, "sleep", lambda _seconds: None)
    monkeypatch.setattr(rounds.Rounds, "_may_change", False)
    with pytest.raises(DpddError, match="round 4 of 6 waits"):
        run.execute(grid)
    index = tmp_path / "run" / "store" / "index.sqlite"
    import sqlite3

    db = sqlite3.connect(index)
    db.execute("UPDATE rounds SET silos = ? WHERE rowid = 3", (json.dumps(["north", "south"]),))
    db.commit()
    db.close()
    with pytest.raises(IntegrityError, match="round 4 was asked with another input"):
        again(tmp_path, grid).execute(grid)


def test_a_silo_that_was_revoked_ends_a_run_that_rests_on_it(tmp_path: Path) -> None:
    run, grid = prepare(tmp_path)
    run.execute(grid)
    late = again(tmp_path, grid)
    late.roster = Roster({name: key for name, key in grid.roster.keys.items() if name != "east"})
    with pytest.raises(IntegrityError, match="round 1 was made with the release of east"):
        late.execute(NobodyGrid())


def test_later_stages_of_a_method_without_rounds_are_not_skipped(tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    text = '[data]\ndataset = "fashion-slice"\nsilos = 3\n[method]\nname = "sps"\n[exchange]\n'
    path.write_text(f'name = "s"\n{text}dropouts = "skip"\n')
    with pytest.raises(ConfigError, match="a later stage of sps builds on the sums"):
        load_scenario(str(path))
    path.write_text(f'name = "s"\n{text}round_minutes = 2\n')
    with pytest.raises(ConfigError, match=r"time limit of exchange\.dropouts"):
        load_scenario(str(path))


def test_sums_are_read_again_by_whoever_looks_at_them(tmp_path: Path) -> None:
    """Of many rounds nothing is kept in memory but what was stated."""
    run, grid = prepare(tmp_path)
    run.execute(grid)
    with run.store() as store:
        from dpdd.server.run.requests import request_groups

        asked = request_groups(run.scenario, run.roster.keys)
        stages = run.gather(NobodyGrid(), asked, store)
        assert all(not release.arrays for stage in stages for release in stage.releases)
        for number, stage in enumerate(stages):
            assert stage.statistics is not None
            requests = [each for each in map(decode_request, store.requests()) if each.stage == number]
            found = store.releases(requests[0].id, run.roster)
            total = sum(release.arrays["gradient"].astype(np.float64) for release in found)
            ratio = stage.statistics.sums["gradient"] / np.where(total == 0.0, 1.0, total)
            np.testing.assert_allclose(ratio[total != 0.0], ratio.flat[np.argmax(total != 0.0)])


def test_a_round_after_which_a_file_asked_for_the_next_is_closed(tmp_path: Path) -> None:
    run, grid = prepare(tmp_path, 'dropouts = "wait"')
    silos = sorted(run.roster.keys)

    def answer(names: Sequence[str], request: ReleaseRequest) -> None:
        for name in names:
            given: Any = Silo(tmp_path / "silos" / name).answer(request.encode())
            store.add(given.data, request.id, run.roster)

    with run.store() as store:
        first = open_stage(run, store, silos)
        assert first is not None and first.number == 0
        answer(silos[1:], first.groups[0].request)
        second = open_stage(run, store, silos, 1)
        assert second is not None and [*second.missing] == silos[1:]
        answer(silos[:1], first.groups[0].request)  # too late for the first round
        again_asked = open_stage(run, store, silos)
        assert again_asked is not None and again_asked.groups[0].request.id == second.groups[0].request.id
    again(tmp_path, grid).execute(grid)
    assert took_part(tmp_path) == {silos[0]: "2-6", silos[1]: "1-6", silos[2]: "1-6"}
