"""Runs in stages: one input for everybody and for ever, late silos included; every stage's release is in the card."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpdd.client.app import make_app
from dpdd.client.silo import Silo
from dpdd.common.errors import DpddError, IntegrityError
from dpdd.common.privacy.events import compose, to_json
from dpdd.common.progress import Console
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.wire.release import open_signed
from dpdd.common.wire.request import Kind, ReleaseRequest, decode_request
from dpdd.scenarios.simulator.inprocess import InProcessGrid
from dpdd.scenarios.simulator.silos import set_up
from dpdd.server.cli import main as server
from dpdd.server.evaluation import continual
from dpdd.server.report.card import privacy_rows
from dpdd.server.run.pipeline import Run
from dpdd.server.run.requests import RequestGroup, asked_stage_input, stage_request_groups
from dpdd.server.run.roster import Roster
from dpdd.server.run.scenario import load_scenario
from dpdd.server.run.store import Store
from tests import staged

staged_method = staged.staged_method
pytestmark = pytest.mark.usefixtures("staged_method")

SCENARIO = """
name = "in-stages"
summary = "three silos, three stages"
[data]
dataset = "fashion-slice"
silos = 3
records_per_silo = 3000
[privacy]
{privacy}
[method]
name = "staged"
{method}
[method.settings]
stages = {stages}
[synthesis]
images_per_class = 2
[evaluation]
runs = 0
{more}
"""
ALL = ("east", "north", "south")


class Grid(InProcessGrid):
    """A grid whose `broken` silos fail to answer a stage."""

    broken: frozenset[tuple[str, int]] = frozenset()

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> Iterable[Any]:
        messages = list(messages)
        for message in messages:
            node = message.metadata.dst_node_id
            if (self.silo_of(node), int(message.metadata.group_id)) in self.broken:
                self._silos[node] = self._silos[node] / "nowhere"
        try:
            yield from super().send_and_receive(messages, timeout=timeout)
        finally:
            for node, folder in self._silos.items():
                self._silos[node] = folder.parent if folder.name == "nowhere" else folder

    def silo_of(self, node: int) -> str:
        folder = self._silos[node]
        return folder.parent.name if folder.name == "nowhere" else folder.name


def prepare(folder: Path, *, privacy: str = "", method: str = "", more: str = "", stages: int = 3) -> tuple[Run, Grid]:
    path = folder / "scenario.toml"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(SCENARIO.format(privacy=privacy, method=method, more=more, stages=stages))
    scenario = load_scenario(str(path))
    silos = set_up(scenario, folder / "run", Console(quiet=True))
    roster = Roster({silo.settings.name: silo.public_key for silo in silos})
    grid = Grid.of(make_app(), [silo.folder for silo in silos])
    return Run(scenario, folder / "run", roster, Console(quiet=True)), grid


def again(run: Run) -> Run:
    """The same run, as a new process would start it."""
    return Run(run.scenario, run.folder, run.roster, Console(quiet=True))


def stored(run: Run) -> list[ReleaseRequest]:
    store = Store(run.folder / "store")
    try:
        return [decode_request(data) for data in store.requests()]
    finally:
        store.close()


def card(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.folder / "card.json").read_text())
    return found


def kinds(run: Run, silo: str) -> list[str]:
    ledger = Silo(run.folder / "silos" / silo).ledger()
    try:
        return [entry.kind for entry in ledger.entries()]
    finally:
        ledger.close()


def spent(run: Run, silo: str) -> float:
    ledger = Silo(run.folder / "silos" / silo).ledger()
    try:
        return ledger.status().spent
    finally:
        ledger.close()


def test_a_run_in_stages_names_each_guarantee_once_and_every_release(tmp_path: Path) -> None:
    run, grid = prepare(tmp_path)
    metrics = run.execute(grid)
    assert [row["silo"] for row in metrics["privacy"]] == list(ALL)
    assert {(row["epsilon"], row["releases"]) for row in metrics["privacy"]} == {(1.0, 3)}
    assert [request.stage for request in stored(run)] == [0, 1, 2]
    for row in card(run)["silos"]:
        assert len(set(row["release_sha256"])) == 3
        releases = [open_signed((run.folder / "store" / sha).read_bytes()) for sha in row["release_sha256"]]
        assert [release.request_id for release in releases] == [request.id for request in stored(run)]
        assert row["event"] == to_json(compose(*(release.event for release in releases)))
        assert kinds(run, row["silo"]) == ["open", "reserve", "commit", "stage", "commit", "stage", "commit"]
        assert spent(run, row["silo"]) == pytest.approx(1.0, abs=1e-4)
        assert all(sha[:16] in (run.folder / "CARD.md").read_text() for sha in row["release_sha256"])
    assert server(["verify", str(run.folder)]) == 0


def test_verify_looks_at_every_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, grid = prepare(tmp_path)
    run.execute(grid)
    honest = card(run)

    def verdict(**changes: Any) -> str:
        changed = {**honest, "silos": [{**honest["silos"][0], **changes}, *honest["silos"][1:]]}
        (run.folder / "card.json").write_text(json.dumps(changed))
        capsys.readouterr()
        assert server(["verify", str(run.folder)]) == IntegrityError.exit_code
        return capsys.readouterr().err

    digests, others = honest["silos"][0]["release_sha256"], honest["silos"][1]["release_sha256"]
    assert "another event" in verdict(release_sha256=digests[:2])
    assert "one twice" in verdict(release_sha256=[digests[0], digests[1], digests[1]])
    assert "no release" in verdict(release_sha256=[])
    assert "another key" in verdict(release_sha256=[*digests[:2], others[2]])
    assert "another guarantee" in verdict(epsilon=0.5)
    for stage, digest in enumerate(digests):
        path = run.folder / "store" / digest
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        assert "not what its name says" in verdict(), stage
        path.write_bytes(whole)
    (run.folder / "card.json").write_text(json.dumps(honest))
    assert server(["verify", str(run.folder)]) == 0
    out = tmp_path / "public"
    assert server(["export", str(run.folder), "--out", str(out)]) == 0
    assert server(["verify", str(out)]) == 0
    assert {sha for row in honest["silos"] for sha in row["release_sha256"]} <= {
        p.name for p in (out / "store").iterdir()
    }


def test_silos_with_their_own_epsilon_have_their_own_roots_and_one_input(tmp_path: Path) -> None:
    run, grid = prepare(tmp_path, privacy="epsilons = { north = 0.5, south = 4.0 }", method='aggregation = "precision"')
    metrics = run.execute(grid)
    assert {row["silo"]: row["epsilon"] for row in metrics["privacy"]} == {"east": 1.0, "north": 0.5, "south": 4.0}
    requests = stored(run)
    roots = {request.id for request in requests if request.stage == 0}
    assert len(roots) == 3 and {request.first_stage().id for request in requests} == roots
    for stage in (1, 2):
        inputs = [request.stage_input["mean"].tobytes() for request in requests if request.stage == stage]
        assert len(inputs) == 3 and len(set(inputs)) == 1
    for silo, epsilon in {"east": 1.0, "north": 0.5, "south": 4.0}.items():
        assert spent(run, silo) == pytest.approx(epsilon, rel=1e-3)
    assert server(["verify", str(run.folder)]) == 0


def forbidden(*_arguments: Any, **_more: Any) -> Any:
    raise AssertionError("a stage's input was computed a second time")


def test_running_again_asks_nothing_new_and_computes_no_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, grid = prepare(tmp_path)
    run.execute(grid)
    before, images = stored(run), LabelledSet.load(run.folder / "dataset").images
    monkeypatch.setattr(staged.Staged, "stage_input", forbidden)
    again(run).execute(grid)
    assert [request.id for request in stored(run)] == [request.id for request in before]
    np.testing.assert_array_equal(LabelledSet.load(run.folder / "dataset").images, images)
    assert all(kinds(run, silo).count("reserve") == 1 for silo in ALL)


@pytest.mark.parametrize("privacy", ["epsilon = 1.0", "epsilon = inf"])
def test_a_late_silo_is_asked_with_the_stored_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, privacy: str
) -> None:
    run, grid = prepare(tmp_path, privacy=privacy)
    grid.broken = frozenset({("east", 0)})
    run.execute(grid)
    assert list(run.missing) == ["east"] and kinds(run, "east") == ["open"]
    asked = [request.id for request in stored(run)]
    grid.broken = frozenset()
    late = again(run)
    with monkeypatch.context() as patch:
        patch.setattr(staged.Staged, "stage_input", forbidden)
        metrics = late.execute(grid)
    assert late.missing == {} and {row["silo"]: row["releases"] for row in metrics["privacy"]} == dict.fromkeys(ALL, 3)
    assert [request.id for request in stored(run)] == asked
    assert server(["verify", str(run.folder)]) == 0
    if privacy == "epsilon = inf":  # without noise the right inputs, added back, leave no trace in the means
        other, all_at_once = prepare(tmp_path / "other", privacy=privacy, stages=1)
        other.execute(all_at_once)
        found = [LabelledSet.load(job.folder / "dataset").images.astype(int) for job in (run, other)]
        assert np.abs(found[0] - found[1]).max() <= 1


def test_a_silo_that_misses_a_stage_is_named_and_joins_it_later(tmp_path: Path) -> None:
    run, grid = prepare(tmp_path)
    grid.broken = frozenset({("east", 1)})
    metrics = run.execute(grid)
    assert list(run.missing) == ["east"] and run.missing["east"].startswith("stage 1: ")
    rows = {row["silo"]: row for row in metrics["privacy"]}
    assert {silo: row["releases"] for silo, row in rows.items()} == {"east": 2, "north": 3, "south": 3}
    assert rows["east"]["epsilon"] == 1.0  # all stages are paid for, whether or not they were answered
    assert card(run)["silos_without_release"] == run.missing
    assert "not in every stage" in (run.folder / "CARD.md").read_text()
    assert server(["verify", str(run.folder)]) == 0
    grid.broken = frozenset()
    metrics = again(run).execute(grid)
    assert {row["releases"] for row in metrics["privacy"]} == {3}
    assert spent(run, "east") == pytest.approx(1.0, abs=1e-4)


def test_a_stage_that_nobody_answers_stops_the_run_and_can_be_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, grid = prepare(tmp_path)
    grid.broken = frozenset((silo, 2) for silo in ALL)
    with pytest.raises(DpddError, match="no silo answered stage 2"):
        run.execute(grid)
    asked = [request.id for request in stored(run)]
    assert len(asked) == 3
    grid.broken = frozenset()
    monkeypatch.setattr(staged.Staged, "stage_input", forbidden)
    again(run).execute(grid)
    assert [request.id for request in stored(run)] == asked


class Died(BaseException):
    """As if the coordinator's process had ended here."""


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_coordinator_that_dies_while_it_stores_a_stage_never_asks_two_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    run, grid = prepare(tmp_path, privacy="epsilons = { north = 0.5, south = 4.0 }")
    honest, left = Store.add_request, [kept]

    def dying(store: Store, request_id: str, data: bytes) -> None:
        if decode_request(data).stage == 1:
            if not left[0]:
                raise Died
            left[0] -= 1
        honest(store, request_id, data)

    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(Store, "add_request", dying)
        run.execute(grid)
    assert sum(request.stage == 1 for request in stored(run)) == kept
    real = staged.Staged.stage_input
    monkeypatch.setattr(staged.Staged, "stage_input", lambda *a: {"mean": real(*a)["mean"] * np.float32(0.5)})
    metrics = again(run).execute(grid)
    assert {row["releases"] for row in metrics["privacy"]} == {3}
    inputs = {request.stage_input["mean"].tobytes() for request in stored(run) if request.stage == 1}
    assert len(inputs) == 1


def test_what_a_later_stage_asks_and_of_whom() -> None:
    public = {"run": "r", "method": "staged", "settings": {}, "delta": 1e-5, "classes": ("a", "b"), "shape": (1, 8, 8)}
    asked = [
        RequestGroup(ReleaseRequest(**public, epsilon=epsilon, public_seed=1), frozenset(silos))  # type: ignore[arg-type]
        for epsilon, silos in ((1.0, {"north", "east"}), (2.0, {"south"}))
    ]
    stage_input = {"mean": np.arange(4, dtype=np.float32)}
    later = stage_request_groups(asked, 2, stage_input, {"north", "east"})
    assert [group.silos for group in later] == [{"north", "east"}]
    assert later[0].request.first_stage().id == asked[0].request.id and later[0].request.stage == 2
    kept = [group.request.encode() for group in (*asked, *later)]
    found = asked_stage_input(kept, asked, 2)
    assert found is not None and found["mean"].tolist() == [0, 1, 2, 3]
    assert stage_request_groups(asked, 2, found, {"north", "east", "south"})[0].request.id == later[0].request.id
    assert asked_stage_input(kept, asked, 1) is None and asked_stage_input(kept, asked[1:], 2) is None


def test_a_decentralised_run_asks_once_and_its_releases_have_the_event_of_all_stages(tmp_path: Path) -> None:
    run, grid = prepare(tmp_path / "sets", privacy="epsilon = 4.0", method='mode = "decentralised"')
    metrics = run.execute(grid)
    assert [(request.stage, request.kind) for request in stored(run)] == [(0, Kind.DISTILLED_SET)]
    assert {row["releases"] for row in metrics["privacy"]} == {1}
    assert server(["verify", str(run.folder)]) == 0
    sums, other = prepare(tmp_path / "sums", privacy="epsilon = 4.0")
    events = [row["event"] for row in sums.execute(other)["privacy"]]
    assert [row["event"] for row in metrics["privacy"]] == events and len(events[0]) == 2
    assert all(spent(run, silo) == pytest.approx(4.0, rel=1e-3) for silo in ALL)
    assert all(kinds(run, silo) == ["open", "reserve", "commit"] for silo in ALL)


def test_tasks_in_stages(tmp_path: Path) -> None:
    run, grid = prepare(tmp_path, more="[continual]\ntasks = 2\njoint = false\n")
    metrics = continual.learn(run, grid)
    assert len(metrics["privacy"]) == 6 and {row["releases"] for row in metrics["privacy"]} == {3}
    assert [request.stage for request in stored(run)] == [0, 1, 2] * 2
    assert server(["verify", str(run.folder)]) == 0


def test_one_row_for_each_silo_and_one_guarantee(tmp_path: Path) -> None:
    run, grid = prepare(tmp_path, privacy="epsilons = { north = 0.5 }")
    run.execute(grid)
    rows = {row["silo"]: row for row in card(run)["silos"]}
    north, east = (
        open_signed((run.folder / "store" / rows[silo]["release_sha256"][0]).read_bytes()) for silo in ("north", "east")
    )
    assert [row["silo"] for row in privacy_rows([north, east])] == ["east", "north"]
    object.__setattr__(north, "silo", "east")
    with pytest.raises(IntegrityError, match="different guarantees"):
        privacy_rows([north, east])
