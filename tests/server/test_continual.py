"""Tasks one after the other: every record in one release, the right figures, and a ceiling to compare with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dpdd.client.app import make_app
from dpdd.client.silo import Silo
from dpdd.common import datasets
from dpdd.common.datasets import LabelledImages
from dpdd.common.errors import ConfigError
from dpdd.common.progress import Console
from dpdd.common.scenario import ContinualSection, load_scenario, task_of, task_silo
from dpdd.common.synthesis.dataset import SyntheticSet
from dpdd.common.wire.release import open_signed
from dpdd.scenarios.cli import main
from dpdd.scenarios.inprocess import InProcessGrid
from dpdd.server import continual
from dpdd.server.cli import main as server
from dpdd.server.continual import join, of_classes, summary
from dpdd.server.pipeline import Run
from dpdd.server.roster import Roster

SCENARIO = """
name = "tiny-tasks"
summary = "two tasks"
[data]
dataset = "fashion-slice"
silos = 2
[privacy]
epsilons = { north = 2.0 }
[method]
name = "dp-merf"
[method.settings]
features = 16
[synthesis]
images_per_class = 3
[synthesis.settings]
steps = 2
batch = 20
[evaluation]
runs = 2
width = 4
steps = 2
batch = 8
[continual]
tasks = 2
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("continual")
    (folder / "tasks.toml").write_text(SCENARIO)
    assert main(["run", str(folder / "tasks.toml"), "--out", str(folder / "run"), "--quiet"]) == 0
    return folder / "run"


def test_every_record_is_in_one_release_and_every_task_has_its_own_budget(finished: Path) -> None:
    silos = [Silo(path) for path in sorted((finished / "silos").iterdir())]
    assert [silo.settings.name for silo in silos] == ["east-task-1", "east-task-2", "north-task-1", "north-task-2"]
    classes = datasets.load("fashion-slice", "train").classes
    records = 0
    for silo in silos:
        owner, task = task_of(silo.settings.name) or ("", 0)
        assert silo.settings.data.classes == (classes[:5] if task == 1 else classes[5:])
        assert silo.settings.budget.epsilon == (2.0 if owner == "north" else 1.0)
        assert len(silo.outbox.ids()) == 1
        header = (silo.folder / "images.idx").read_bytes()[4:8]
        records += int.from_bytes(header, "big")
    assert records == len(datasets.load("fashion-slice", "train"))


def test_metrics_hold_the_matrix_the_figures_and_the_ceiling(finished: Path) -> None:
    metrics = json.loads((finished / "metrics.json").read_text())
    found = metrics["continual"]
    assert [len(row) for row in found["matrix"]] == [1, 2] and [len(task) for task in found["tasks"]] == [5, 5]
    assert found["average"] == pytest.approx(np.mean(found["matrix"][-1]))
    assert found["forgetting"] == pytest.approx(found["matrix"][0][0] - found["matrix"][1][0])
    assert found["seen"][-1] == pytest.approx(metrics["accuracy"]["convnet"]["mean"])
    assert len(metrics["accuracy"]["convnet"]["runs"]) == 2 == len(found["joint"]["runs"])
    made = SyntheticSet.load(finished / "dataset")
    assert np.bincount(made.labels).tolist() == [3] * 10
    assert made.classes == datasets.load("fashion-slice", "test").classes
    assert sorted(row["silo"] for row in metrics["privacy"]) == [row["silo"] for row in metrics["privacy"]]
    assert {row["silo"]: row["epsilon"] for row in metrics["privacy"]}["north-task-2"] == 2.0
    assert server(["verify", str(finished)]) == 0


def test_running_again_asks_for_nothing_new(finished: Path) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*.release")}
    arguments = ["run", str(finished.parent / "tasks.toml"), "--out", str(finished), "--quiet"]
    assert main(arguments) == 0
    assert {path: path.read_bytes() for path in finished.rglob("*.release")} == before
    assert len(before) == 4 + 2
    assert all(open_signed(data).releasable for data in before.values())


def test_figures_by_hand() -> None:
    found = summary([[0.9], [0.6, 0.8], [0.7, 0.5, 0.3]], [10, 10, 20])
    assert found["average"] == pytest.approx(0.5)
    assert found["forgetting"] == pytest.approx(((0.9 - 0.7) + (0.8 - 0.5)) / 2)
    assert found["seen"] == pytest.approx([0.9, 0.7, 0.45])
    assert summary([[0.9]], [10])["forgetting"] == 0.0


def test_some_classes_and_their_union() -> None:
    images = np.arange(6, dtype=np.uint8)[:, None, None, None].repeat(8, axis=2).repeat(8, axis=3)
    data = LabelledImages(images, np.array([0, 1, 2, 3, 2, 1]), ("a", "b", "c", "d"))
    some = of_classes(data, ("c", "b"))
    assert some.labels.tolist() == [1, 0, 0, 1] and some.images[:, 0, 0, 0].tolist() == [1, 2, 4, 5]
    one = SyntheticSet(images[:2], np.array([0, 1]), ("a", "b"), np.eye(2, dtype=np.float32))
    two = SyntheticSet(images[2:4], np.array([1, 0]), ("c", "d"), np.eye(2, dtype=np.float32)[::-1])
    both = join([one, two])
    assert both.labels.tolist() == [0, 1, 3, 2] and both.classes == ("a", "b", "c", "d")
    assert both.soft is not None and both.soft.argmax(axis=1).tolist() == both.labels.tolist()


def test_tasks_are_cut_in_order_or_named() -> None:
    classes = tuple("abcdefg")
    assert ContinualSection(tasks=3).split(classes) == [("a", "b"), ("c", "d", "e"), ("f", "g")]
    named = (("g", "a"), ("b", "c", "d", "e", "f"))
    assert ContinualSection(tasks=named).split(classes) == list(named)
    for wrong, words in (
        (4, "at least two classes"),
        ((("a", "b"), ("c", "d")), "'e'"),
        ((("a", "b"), ("b", "c", "d", "e", "f", "g")), "'b'"),
        ((("a", "x"), tuple("bcdefg")), "'x'"),
    ):
        with pytest.raises(ConfigError, match=words):
            ContinualSection(tasks=wrong).split(classes)
    assert task_of(task_silo("north-task-2", 3)) == ("north-task-2", 3)
    assert task_of("north") is None and task_of("-task-1") is None and task_of("north-task-x") is None


def test_a_task_without_a_silo_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "tasks.toml").write_text(SCENARIO)
    scenario = load_scenario(str(tmp_path / "tasks.toml"))
    run = Run(scenario, tmp_path / "run", Roster({"north-task-1": bytes(32)}), Console(quiet=True))
    with pytest.raises(ConfigError, match="task 2"):
        continual.learn(run, InProcessGrid.of(make_app(), []))
