"""Tasks one after the other: every record in one release, the right figures, and a ceiling to compare with."""

from __future__ import annotations

import io
import json
import re
import shutil
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpdd.client.app import make_app
from dpdd.client.silo import Silo
from dpdd.common.data import benchmarks
from dpdd.common.data.labelled_images import LabelledImages
from dpdd.common.errors import ConfigError, DataError, IntegrityError
from dpdd.common.models.backbone import Provenance, build, save
from dpdd.common.models.convnet import ConvNetArchitecture
from dpdd.common.progress import Console
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.product_files import TEACHER, file_sha256
from dpdd.common.wire.release import open_signed
from dpdd.scenarios.cli import main
from dpdd.scenarios.simulator.inprocess import InProcessGrid
from dpdd.server.cli import main as server
from dpdd.server.evaluation import continual, convnet
from dpdd.server.evaluation.continual import join, of_classes, summary
from dpdd.server.evaluation.scoring import evaluate, scores
from dpdd.server.run.pipeline import Run
from dpdd.server.run.public_backbone import public_backbone
from dpdd.server.run.roster import Roster
from dpdd.server.run.scenario import ContinualSection, load_scenario, task_of, task_silo

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
learners = ["convnet"]
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
    classes = benchmarks.load("fashion-slice", "train").classes
    records = 0
    for silo in silos:
        owner, task = task_of(silo.settings.name) or ("", 0)
        assert silo.settings.data.classes == (classes[:5] if task == 1 else classes[5:])
        assert silo.settings.budget.epsilon == (2.0 if owner == "north" else 1.0)
        assert len(silo.outbox.ids()) == 1
        header = (silo.folder / "images.idx").read_bytes()[4:8]
        records += int.from_bytes(header, "big")
    assert records == len(benchmarks.load("fashion-slice", "train"))


def test_metrics_hold_the_matrix_the_figures_and_the_ceiling(finished: Path) -> None:
    metrics = json.loads((finished / "metrics.json").read_text())
    joint, figures = metrics["continual"]["joint"]["convnet"], metrics["continual"]["learners"]["convnet"]
    assert metrics["continual"]["learners"].keys() == {"convnet"}, "DP-MERF's releases contain no classifier"
    assert [len(row) for row in figures["matrix"]] == [1, 2] and [
        len(task) for task in metrics["continual"]["tasks"]
    ] == [5, 5]
    assert figures["average"] == pytest.approx(np.mean(figures["matrix"][-1]))
    assert figures["forgetting"] == pytest.approx(figures["matrix"][0][0] - figures["matrix"][1][0])
    assert figures["seen"][-1] == pytest.approx(metrics["accuracy"]["convnet"]["mean"])
    assert len(metrics["accuracy"]["convnet"]["runs"]) == 2 == len(joint["runs"])
    dataset = LabelledSet.load(finished / "dataset")
    assert np.bincount(dataset.labels).tolist() == [3] * 10
    assert dataset.classes == benchmarks.load("fashion-slice", "test").classes
    assert sorted(row["silo"] for row in metrics["privacy"]) == [row["silo"] for row in metrics["privacy"]]
    assert {row["silo"]: row["epsilon"] for row in metrics["privacy"]}["north-task-2"] == 2.0
    assert server(["verify", str(finished)]) == 0


def test_tasks_may_come_from_one_silo_after_the_other(tmp_path: Path) -> None:
    text = SCENARIO.replace("epsilons = { north = 2.0 }", "").replace(
        "tasks = 2", 'tasks = 3\ncomes_from = "one silo each"\njoint = false'
    )
    file = tmp_path / "tasks.toml"
    file.write_text(text)
    assert main(["run", str(file), "--out", str(tmp_path / "run"), "--quiet"]) == 0
    silos = [Silo(path) for path in sorted((tmp_path / "run" / "silos").iterdir())]
    assert [silo.settings.name for silo in silos] == ["east-task-2", "north-task-1", "north-task-3"]
    sizes = [int.from_bytes((silo.folder / "images.idx").read_bytes()[4:8], "big") for silo in silos]
    train = benchmarks.load("fashion-slice", "train")
    assert sum(sizes) == len(train) and [len(silo.outbox.ids()) for silo in silos] == [1, 1, 1]
    for silo, size in zip(silos, sizes, strict=True):
        assert size == len(of_classes(train, silo.settings.data.classes))  # all that there is of its task
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert len(metrics["continual"]["learners"]["convnet"]["matrix"]) == 3 and "joint" not in metrics["continual"]

    file.write_text(text.replace("silos = 2", "silos = 4"))
    with redirect_stderr(io.StringIO()) as said:
        assert main(["run", str(file), "--out", str(tmp_path / "other"), "--quiet"]) != 0
    assert "4 silos cannot bring one of 3 tasks each" in said.getvalue()
    file.write_text(text.replace("silos = 2", 'silos = 2\npartition = "dirichlet"\nalpha = 0.3'))
    with pytest.raises(ConfigError, match="splits the records by task"):
        load_scenario(str(file))


def test_running_again_asks_for_nothing_new(finished: Path) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*.release")}
    arguments = ["run", str(finished.parent / "tasks.toml"), "--out", str(finished), "--quiet"]
    assert main(arguments) == 0
    assert {path: path.read_bytes() for path in finished.rglob("*.release")} == before
    assert len(before) == 4 + 2
    assert all(open_signed(data).releasable for data in before.values())


def test_figures_by_hand() -> None:
    figures = summary([[0.9], [0.6, 0.8], [0.7, 0.5, 0.3]], [10, 10, 20])
    assert figures["average"] == pytest.approx(0.5)
    assert figures["forgetting"] == pytest.approx(((0.9 - 0.7) + (0.8 - 0.5)) / 2)
    assert figures["seen"] == pytest.approx([0.9, 0.7, 0.45])
    assert summary([[0.9]], [10])["forgetting"] == 0.0


def test_some_classes_and_their_union() -> None:
    images = np.arange(6, dtype=np.uint8)[:, None, None, None].repeat(8, axis=2).repeat(8, axis=3)
    data = LabelledImages(images, np.array([0, 1, 2, 3, 2, 1]), ("a", "b", "c", "d"))
    some = of_classes(data, ("c", "b"))
    assert some.labels.tolist() == [1, 0, 0, 1] and some.images[:, 0, 0, 0].tolist() == [1, 2, 4, 5]
    one = LabelledSet(images[:2], np.array([0, 1]), ("a", "b"), np.eye(2, dtype=np.float32))
    two = LabelledSet(images[2:4], np.array([1, 0]), ("c", "d"), np.eye(2, dtype=np.float32)[::-1])
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


# A teacher for all tasks

TAUGHT = """
name = "taught"
[data]
dataset = "fashion-slice"
silos = 2
records_per_silo = 500
[privacy]
epsilon = inf
[method]
name = "sps"
[method.settings]
backbone = "{backbone}"
features = 8
picture = 5
stages = {stages}
[synthesis]
images_per_class = 2
[synthesis.settings]
steps = 2
batch_per_class = 2
[evaluation]
runs = 2
learners = ["convnet", "fine-tune"]
metrics = ["accuracy", "balanced-accuracy", "macro-roc-auc"]
width = 4
steps = 2
batch = 8
augmentations = 100
[evaluation.fine_tune]
steps = 2
batch = 8
"""


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same records without noise: in two tasks of two stages, and all classes at once in one stage."""
    folder = tmp_path_factory.mktemp("taught")
    torch.manual_seed(1)
    shape = ConvNetArchitecture(channels=1, height=28, width=28, classes=3, widths=(4, 8), pool_after=(1, 2))
    network = build(shape).eval()
    with torch.no_grad():
        network.whitening.fit(network.features(torch.rand(300, 1, 28, 28)))
    save(folder / "tiny", network, Provenance("noise", "none", 0.0, "none", 0))
    trainings: list[int] = []
    train = convnet._train

    def counted(dataset: LabelledSet, *rest: Any) -> Any:
        trainings.append(len(dataset))
        return train(dataset, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convnet, "_train", counted)
        for name, stages, more in (("tasks", 2, "[continual]\ntasks = 2\njoint = false\n"), ("once", 1, "")):
            file, out = folder / f"{name}.toml", folder / name
            file.write_text(TAUGHT.format(backbone=folder / "tiny", stages=stages) + more)
            trainings.clear()
            with redirect_stdout(io.StringIO()) as shown:
                assert main(["run", str(file), "--out", str(out), "--quiet"]) == 0
            (out / "shown.txt").write_text(shown.getvalue())
            (out / "trainings.json").write_text(json.dumps(trainings))
    return {name: folder / name for name in ("tasks", "once")}


def metrics_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "metrics.json").read_text())


def test_the_teacher_of_all_tasks_is_the_ridge_of_all_classes_at_once(taught: dict[str, Path]) -> None:
    """Class sums and second moments add up exactly; the tasks' second stages, about their own classes, are left out."""
    tasks, once = (LabelledSet.load(taught[name] / "dataset") for name in ("tasks", "once"))
    assert tasks.teacher is not None and once.teacher is not None and tasks.classes == once.classes
    scale = np.abs(once.teacher.weights).max()
    np.testing.assert_allclose(tasks.teacher.weights, once.teacher.weights, rtol=1e-5, atol=1e-5 * scale)
    assert tasks.teacher.embedding == once.teacher.embedding and tasks.teacher.backbone == once.teacher.backbone
    assert metrics_of(taught["tasks"])["accuracy"]["teacher"] == metrics_of(taught["once"])["accuracy"]["teacher"]


def test_every_learner_has_its_figures_per_step_and_learns_from_the_teacher(taught: dict[str, Path]) -> None:
    metrics, test = metrics_of(taught["tasks"]), benchmarks.load("fashion-slice", "test")
    learners = metrics["continual"]["learners"]
    assert list(learners) == list(metrics["accuracy"]) == ["convnet", "fine-tune", "teacher"]
    for name, figures in learners.items():
        assert [len(row) for row in figures["matrix"]] == [1, 2]
        assert figures["seen"][-1] == pytest.approx(metrics["accuracy"][name]["mean"])
    assert [metrics["accuracy"][name].get("labels") for name in learners] == ["teacher", "teacher", None]
    dataset = LabelledSet.load(taught["tasks"] / "dataset")
    assert dataset.teacher is not None and learners["teacher"]["seen"][0] > 0.5
    for task, share in zip(metrics["continual"]["tasks"], learners["teacher"]["matrix"][-1], strict=True):
        part = test.subset(np.isin(test.labels, [test.classes.index(name) for name in task]))
        assert share == pytest.approx(scores([dataset.teacher.logits], part)["accuracy"].mean)


def test_networks_are_trained_once_per_step(taught: dict[str, Path]) -> None:
    """Two runs each, on the ten images of the first task and then on all twenty."""
    assert json.loads((taught["tasks"] / "trainings.json").read_text()) == [10, 10, 20, 20]


def test_results_are_printed_as_tables(taught: dict[str, Path]) -> None:
    lines = (taught["tasks"] / "shown.txt").read_text().splitlines()
    metrics = metrics_of(taught["tasks"])
    (first,) = [line for line in lines if re.match("fine-tuned tiny +teacher-labelled augmentations ", line)]
    score = metrics["accuracy"]["fine-tune"]
    assert f" {100 * score['mean']:.1f} ± {100 * score['std']:.1f} " in first
    area = metrics["metrics"]["macro-roc-auc"]["fine-tune"]
    assert first.endswith(f" {area['mean']:.3f} ± {area['std']:.3f}")
    (last,) = [line for line in lines if line.startswith("teacher  ") and "the releases" not in line]
    figures = metrics["continual"]["learners"]["teacher"]
    expected = [f"{100 * share:.1f}" for share in (*figures["seen"], figures["forgetting"])]
    assert last.split()[1:] == expected
    assert any(line.startswith("ConvNet from scratch  ") for line in lines)


def test_anybody_can_measure_again(taught: dict[str, Path]) -> None:
    """The dataset's folder and the scenario are enough."""
    scenario = load_scenario(str(taught["once"].with_suffix(".toml")))
    dataset, public = LabelledSet.load(taught["once"] / "dataset"), public_backbone(scenario)
    test = benchmarks.load("fashion-slice", "test")
    shown, expected = evaluate(dataset, test, scenario.evaluation, public, scenario.seed), metrics_of(taught["once"])
    assert list(shown["accuracy"]) == list(expected["accuracy"]) == ["convnet", "fine-tune", "teacher"]
    for name, score in shown["accuracy"].items():
        assert score["runs"] == pytest.approx(expected["accuracy"][name]["runs"], abs=2e-3), name
    assert shown["metrics"].keys() == expected["metrics"].keys() == {"balanced-accuracy", "macro-roc-auc"}


def test_other_metrics_are_those_of_the_last_step_over_all_classes(taught: dict[str, Path]) -> None:
    metrics, test = metrics_of(taught["tasks"]), benchmarks.load("fashion-slice", "test")
    assert {name: list(scores) for name, scores in metrics["metrics"].items()} == {
        name: ["convnet", "fine-tune", "teacher"] for name in ("balanced-accuracy", "macro-roc-auc")
    }
    teacher = LabelledSet.load(taught["tasks"] / "dataset").teacher
    assert teacher is not None
    measured = scores([teacher.logits], test, ("balanced-accuracy", "macro-roc-auc"))
    for name in ("balanced-accuracy", "macro-roc-auc"):
        assert metrics["metrics"][name]["teacher"]["mean"] == pytest.approx(measured[name].mean, abs=1e-3)


def test_verify_checks_the_teacher(taught: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    shutil.copytree(taught["tasks"], folder)
    card, path = json.loads((folder / "card.json").read_text()), folder / "dataset" / TEACHER
    assert card["teacher_sha256"] == file_sha256(path)
    assert f"`dataset/{TEACHER}`" in (folder / "CARD.md").read_text()
    assert card["teacher_sha256"] in (folder / "CARD.md").read_text()
    assert server(["verify", str(folder)]) == 0
    assert f"its teacher ({card['teacher_sha256'][:16]}…)" in capsys.readouterr().out
    assert server(["export", str(folder), "--out", str(tmp_path / "public")]) == 0
    assert server(["verify", str(tmp_path / "public")]) == 0
    kept = path.read_bytes()

    def complaint(code: int) -> str:
        for command in (["verify", str(folder)], ["export", str(folder), "--out", str(tmp_path / "not")]):
            assert server(command) == code
        assert not (tmp_path / "not").exists()
        return capsys.readouterr().err

    path.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    assert "the teacher is not the one in the card" in complaint(IntegrityError.exit_code)
    path.unlink()
    assert "the teacher that the card names is missing" in complaint(DataError.exit_code)
    path.write_bytes(kept)
    del card["teacher_sha256"]
    (folder / "card.json").write_text(json.dumps(card))
    assert "the card names no teacher" in complaint(IntegrityError.exit_code)


def test_a_set_without_a_teacher_has_none_in_its_card(finished: Path) -> None:
    assert "teacher_sha256" not in json.loads((finished / "card.json").read_text())
    assert TEACHER not in (finished / "CARD.md").read_text()
