"""Whole runs of federations that are not all alike: own budgets, own sets, silos that come late."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpdd.client.app import make_app
from dpdd.client.silo import Silo
from dpdd.common.errors import ConfigError
from dpdd.common.progress import Console
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.wire.release import open_signed
from dpdd.common.wire.request import Kind
from dpdd.scenarios.cli import main
from dpdd.scenarios.examples.studies import write as write_study
from dpdd.scenarios.simulator.inprocess import InProcessGrid
from dpdd.scenarios.simulator.silos import roster_of, set_up
from dpdd.server.cli import main as server
from dpdd.server.run.pipeline import Run
from dpdd.server.run.roster import Roster
from dpdd.server.run.scenario import load_scenario
from tests.scenarios.tiny_runs import releases

TINY = """
name = "tiny"
summary = "three tiny silos"
[data]
dataset = "fashion-slice"
silos = 3
records_per_silo = 4000
{data}
[privacy]
epsilon = 1.0
{privacy}
[method]
name = "dp-merf"
{method}
[method.settings]
features = 16
[synthesis]
images_per_class = 4
[synthesis.settings]
steps = 2
batch = 20
[evaluation]
runs = 0
"""


def scenario_file(folder: Path, *, data: str = "", privacy: str = "", method: str = "") -> Path:
    path = folder / "tiny.toml"
    path.write_text(TINY.format(data=data, privacy=privacy, method=method))
    return path


def run(path: Path, out: Path) -> dict[str, Any]:
    assert main(["run", str(path), "--out", str(out), "--quiet"]) == 0
    metrics: dict[str, Any] = json.loads((out / "metrics.json").read_text())
    return metrics


def test_every_silo_is_asked_for_its_own_epsilon_and_has_it_for_a_budget(tmp_path: Path) -> None:
    path = scenario_file(
        tmp_path, privacy="epsilons = { north = 0.5, south = 4.0 }", method='aggregation = "precision"'
    )
    out = tmp_path / "run"
    metrics = run(path, out)
    assert {row["silo"]: row["epsilon"] for row in metrics["privacy"]} == {"north": 0.5, "east": 1.0, "south": 4.0}
    answers = {name: open_signed(data) for name, data in releases(out).items()}
    assert len({release.request_id for release in answers.values()}) == 3
    assert answers["north"].event.sigma > answers["east"].event.sigma > answers["south"].event.sigma  # type: ignore[union-attr]
    for name, epsilon in {"north": 0.5, "east": 1.0, "south": 4.0}.items():
        silo = Silo(out / "silos" / name)
        assert silo.settings.budget.epsilon == epsilon
        assert silo.ledger().status().spent == pytest.approx(epsilon, rel=1e-6)
    assert server(["verify", str(out)]) == 0
    assert json.loads((out / "card.json").read_text())["aggregation"] == "precision"


def test_an_epsilon_for_nobody_is_an_error_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = scenario_file(tmp_path, privacy="epsilons = { nroth = 0.5 }")
    assert main(["run", str(path), "--out", str(tmp_path / "run"), "--quiet"]) == 3
    assert "'nroth'; the silos are east, north, south" in capsys.readouterr().err
    assert not (tmp_path / "run" / "silos").exists()


class Anonymous(InProcessGrid):
    silo_of = None  # type: ignore[assignment]


def test_an_engine_without_names_can_ask_everybody_the_same_but_not_different_things(tmp_path: Path) -> None:
    equal, unequal = tmp_path / "equal", tmp_path / "unequal"
    for folder, privacy in ((equal, ""), (unequal, "epsilons = { north = 0.5 }")):
        folder.mkdir()
        scenario = load_scenario(str(scenario_file(folder, privacy=privacy)))
        silos = set_up(scenario, folder / "run", Console(quiet=True))
        grid = Anonymous.of(make_app(), [silo.folder for silo in silos])
        roster = roster_of(silos)
        job = Run(scenario, folder / "run", roster, Console(quiet=True))
        if privacy:
            with pytest.raises(ConfigError, match="which node is which silo"):
                job.execute(grid)
            assert releases(folder / "run") == {}
        else:
            assert len(job.execute(grid)["privacy"]) == 3


def test_decentralised_silos_send_finished_sets_and_the_run_has_their_union(tmp_path: Path) -> None:
    out = tmp_path / "run"
    metrics = run(scenario_file(tmp_path, method='mode = "decentralised"'), out)
    dataset = LabelledSet.load(out / "dataset")
    assert metrics["dataset"]["images"] == len(dataset) and np.bincount(dataset.labels).tolist() == [4] * 10
    answers = [open_signed(data) for data in releases(out).values()]
    assert {release.kind for release in answers} == {Kind.DISTILLED_SET}
    sent = {image.tobytes() for release in answers for image in release.arrays["images"]}
    assert all(image.tobytes() in sent for image in dataset.images)
    assert max(np.bincount(release.arrays["labels"]).max() for release in answers) == 2  # a third of 4, rounded up
    assert server(["verify", str(out)]) == 0
    assert "decentralised" in (out / "CARD.md").read_text()


def test_a_silo_that_was_broken_joins_the_next_run_and_the_others_repeat_themselves(tmp_path: Path) -> None:
    path, out = scenario_file(tmp_path, data="shares = [0.2, 0.3, 0.5]"), tmp_path / "run"
    set_up(load_scenario(str(path)), out, Console(quiet=True))
    broken = out / "silos" / "east" / "images.idx"
    whole = broken.read_bytes()
    broken.write_bytes(b"broken")
    metrics = run(path, out)
    assert [row["silo"] for row in metrics["privacy"]] == ["north", "south"]
    assert list(json.loads((out / "card.json").read_text())["silos_without_release"]) == ["east"]
    first = releases(out)
    broken.write_bytes(whole)
    metrics = run(path, out)
    assert [row["silo"] for row in metrics["privacy"]] == ["east", "north", "south"]
    assert json.loads((out / "card.json").read_text())["silos_without_release"] == {}
    second = releases(out)
    assert {name: second[name] for name in first} == first and set(second) == {"east", "north", "south"}
    (out / "silos" / "east" / "silo.toml").unlink()  # in trouble again, but its release is here: nothing is missing
    kept = LabelledSet.load(out / "dataset").images
    grid = InProcessGrid.of(make_app(), [out / "silos" / name for name in ("east", "north", "south")])
    job = Run(load_scenario(str(path)), out, Roster.load(out / "silos.json"), Console(quiet=True))
    assert len(job.execute(grid)["privacy"]) == 3 and job.missing == {}
    np.testing.assert_array_equal(LabelledSet.load(out / "dataset").images, kept)


def test_simulated_silos_leave_nothing_in_the_users_state_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    scenario = load_scenario(str(scenario_file(tmp_path)))
    for number, seed in enumerate((None, 3)):
        for silo in set_up(scenario, tmp_path / str(number), Console(quiet=True), noise_seed=seed):
            assert silo.anchor is None and silo.settings.simulation is not None
    for silo in (Silo.initialise(folder) for folder in write_study("four-of-ten", tmp_path / "study", share=0.01)):
        assert silo.anchor is not None and silo.anchor.path.resolve().parent == tmp_path / "study"
    assert not (tmp_path / "state").exists()
