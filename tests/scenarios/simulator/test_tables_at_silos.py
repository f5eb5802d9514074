"""A table that silos evaluate, end to end: figures beside the real ones, a card that adds up, nobody pays twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpdd.client.silo import Silo
from dpdd.common.data import made_patients
from dpdd.common.progress import Console
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.table_teacher import TableTeacher
from dpdd.common.wire.request import Kind, decode_request
from dpdd.scenarios.simulator import simulate
from dpdd.server.cli import main as server
from dpdd.server.report.verification import checked_run
from dpdd.server.run.scenario import load_scenario
from dpdd.server.run.store import Store

SCENARIO = """
name = "judged"
[data]
dataset = "made-patients"
silos = 2
records_per_silo = 2000
[privacy]
epsilon = 8.0
[method]
name = "{method}"
mode = "{mode}"
{settings}
[synthesis]
images_per_class = 200
{synthesis}
[evaluation]
runs = 0
[evaluation.at_silos]
epsilon = 4.0
holdout = 0.25
models = ["linear", "teacher"]
bins = {bins}
"""
FEW = "[synthesis.settings]\nsteps = 40\ncomponents = 8\nteacher_rows = 3000"


def scenario_file(folder: Path, *, method: str = "sps-table", mode: str = "centralised", bins: int = 20) -> Path:
    path = folder / "judged.toml"
    table = method == "sps-table"
    settings = "" if table else "[method.settings]\nfeatures = 40"
    synthesis = FEW if table else "[synthesis.settings]\nsteps = 3"
    path.write_text(SCENARIO.format(method=method, mode=mode, bins=bins, settings=settings, synthesis=synthesis))
    return path


def run(path: Path, folder: Path, console: Console | None = None) -> dict[str, Any]:
    scenario = load_scenario(str(path))
    return simulate.run(str(path), scenario, folder, console or Console(quiet=True), noise_seed=5)


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("judged")
    return folder / "run", run(scenario_file(folder), folder / "run")


def spent(folder: Path) -> dict[str, float]:
    found = {}
    for home in sorted((folder / "silos").iterdir()):
        ledger = Silo(home).ledger()
        found[home.name] = ledger.status().spent
        ledger.close()
    return found


def test_silos_say_what_the_models_are_worth(judged: tuple[Path, dict[str, Any]]) -> None:
    """Beside 4,000 patients that nobody had; seeds are fixed."""
    folder, metrics = judged
    about = metrics["at_silos"]
    assert about["silos"] == ["east", "north"] and about["held_out"] and about["missing"] == {} and about["current"]
    assert list(about["models"]) == ["linear", "teacher"]
    test, dataset = made_patients.rows("test"), LabelledSet.load(folder / "dataset")
    assert isinstance(dataset.teacher, TableTeacher)
    right = float((dataset.teacher.probabilities(test.rows).argmax(1).numpy() == test.labels).mean())
    for name, figures in about["models"].items():
        accuracy, area = figures["accuracy"], figures["roc-auc"]
        assert 800 < figures["records"] < 1200 and accuracy["high"] - accuracy["low"] < 0.2
        assert 0.7 < area["low"] < area["mean"] < area["high"] < 1.0, name
    found = about["models"]["teacher"]["accuracy"]
    assert found["low"] - 0.02 < right < found["high"] + 0.02


def test_card_summary_and_verify_know_it(
    judged: tuple[Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = judged
    card = json.loads((folder / "card.json").read_text())
    assert "teacher_sha256" in card and "teacher_backbone" not in card
    assert [row["silo"] for row in card["evaluation_at_silos"]] == ["east", "north"]
    text = (folder / "CARD.md").read_text()
    assert card["teacher_sha256"] in text and "backbone" not in text
    assert "logistic regression on one-hot cells" in text and "2 silos held out" in " ".join(text.split())
    checked_run(folder)
    out = tmp_path / "published"
    assert server(["export", str(folder), "--out", str(out)]) == 0
    assert "labels any rows" in capsys.readouterr().out
    assert server(["verify", str(out)]) == 0
    teacher = out / "dataset" / "teacher.safetensors"
    teacher.write_bytes(teacher.read_bytes()[:-1] + b"\1")
    assert server(["verify", str(out)]) != 0
    assert "the teacher is not the one in the card" in capsys.readouterr().err


def test_running_again_asks_nobody_to_pay_again(judged: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, metrics = judged
    before = spent(folder)
    again = run(scenario_file(tmp_path), folder)
    assert again["at_silos"]["models"] == metrics["at_silos"]["models"] and spent(folder) == before
    store = Store(folder / "store")
    kinds = [decode_request(data) for data in store.requests()]
    store.close()
    (evaluation,) = [request for request in kinds if request.kind is Kind.EVALUATION]
    assert evaluation.table == made_patients.SCHEMA
    assert [model["kind"] for model in evaluation.settings["models"]] == ["linear", "linear"]


def test_silos_that_synthesise_send_teachers_that_are_united_and_evaluated(tmp_path: Path) -> None:
    metrics = run(scenario_file(tmp_path, mode="decentralised", bins=0), tmp_path / "run")
    about = metrics["at_silos"]
    assert list(about["models"]) == ["linear", "teacher"] and "roc-auc" not in about["models"]["teacher"]
    assert about["models"]["teacher"]["accuracy"]["mean"] > 0.75
    dataset = LabelledSet.load(tmp_path / "run" / "dataset")
    assert isinstance(dataset.teacher, TableTeacher) and dataset.soft is not None
    np.testing.assert_array_equal(dataset.soft, dataset.teacher.probabilities(dataset.rows).numpy())
    checked_run(tmp_path / "run")


def test_a_method_without_a_teacher_has_the_linear_model_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = run(scenario_file(tmp_path, method="dp-merf", bins=0), tmp_path / "run", Console())
    assert list(metrics["at_silos"]["models"]) == ["linear"]
    assert "teacher is not evaluated at the silos" in capsys.readouterr().err


def test_models_of_images_are_refused_before_anybody_is_asked(tmp_path: Path) -> None:
    path = scenario_file(tmp_path)
    path.write_text(path.read_text().replace('"linear", "teacher"', '"convnet"'))
    with pytest.raises(Exception, match="names convnet, and the records are a table: for a table there are linear and"):
        load_scenario(str(path))
