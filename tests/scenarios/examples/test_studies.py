"""The studies on own data, with fewer records: a server and three silos as real processes, over the exchange."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpdd.client.silo import Silo
from dpdd.common.cli import Commands
from dpdd.common.data import formats
from dpdd.common.data.formats import Intake
from dpdd.common.data.made_patients import SCHEMA, rows
from dpdd.common.errors import ConfigError
from dpdd.common.models import backbone
from dpdd.common.progress import Console
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.scenarios.examples import command, hospitals
from dpdd.scenarios.examples.drawings import FIGURES
from dpdd.scenarios.examples.studies import SILOS, STUDIES, write
from dpdd.scenarios.simulator.loopback import run_silos
from dpdd.server.evaluation import convnet_dd
from dpdd.server.report.verification import checked_run


def run(name: str, folder: Path, share: float, more: str = "", **changes: str) -> dict[str, Any]:
    """What `metrics.json` holds after a run of the study with that share of its records, and these settings."""
    silos = [Silo.initialise(silo) for silo in write(name, folder / name, share=share)]
    study = folder / name / "study.toml"
    text = study.read_text()
    for key, value in changes.items():
        text, times = re.subn(rf"(?m)^{key} = .*$", f"{key} = {value}", text)
        assert times, key
    study.write_text(text + more)
    metrics = run_silos(silos, str(study), folder / name / "run", Console(quiet=True))
    assert metrics == json.loads((folder / name / "run" / "metrics.json").read_text())
    checked_run(folder / name / "run")
    return metrics


QUICK = {"features": "48", "steps": "20", "images_per_class": "4", "augmentations": "300"}


def test_colour_images_of_many_sizes_in_four_classes(tmp_path: Path) -> None:
    smaller = {**QUICK, "images_per_class": "2", "batch_per_class": "4", "steps": "4"}
    backbone.load("scattering-3x64x64")  # made once, and not by four processes at the same time
    metrics = run("colour-folders", tmp_path, 0.5, **smaller)
    product = LabelledSet.load(tmp_path / "colour-folders" / "run" / "dataset")
    assert product.images.shape == (8, 3, 64, 64) and product.classes == ("benign", "cracked", "folded", "torn")
    assert {row["silo"] for row in metrics["privacy"]} == set(SILOS)
    assert metrics["accuracy"].keys() == {"convnet-dd", "convnet", "teacher"}  # how good they are is up to the noise


def test_unequal_classes_without_test_data_are_evaluated_at_the_silos(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what the silos are asked about is trained: nobody could score the others."""
    monkeypatch.setattr(convnet_dd, "dd_convnets", None)
    metrics = run("unequal-classes", tmp_path, 0.25, **QUICK)
    assert not metrics["accuracy"]
    for model in ("convnet", "teacher"):
        figure = metrics["at_silos"]["models"][model]["accuracy"]
        assert 0.0 <= figure["low"] <= figure["mean"] <= figure["high"] <= 1.0
    assert metrics["at_silos"]["held_out"] is False


def test_ten_classes_of_which_each_silo_has_four(tmp_path: Path) -> None:
    metrics = run("four-of-ten", tmp_path, 0.5, **QUICK)
    product = LabelledSet.load(tmp_path / "four-of-ten" / "run" / "dataset")
    assert product.classes == FIGURES and np.bincount(product.labels).tolist() == [4] * 10
    assert metrics["accuracy"].keys() == {"convnet-dd", "convnet", "teacher"}


def test_one_table_in_three_hospitals(tmp_path: Path) -> None:
    """A CSV file, a Parquet file and a database become one synthetic table with the original columns."""
    more = '[evaluation]\nlearners = ["gaussian-nb", "decision-tree"]\n'
    more = "[synthesis.settings]\nsteps = 5\nteacher_rows = 200\n" + more
    metrics = run("three-hospitals", tmp_path, 0.2, more, rows_per_class="20")
    assert list(metrics["accuracy"]) == ["gaussian-nb", "decision-tree", "teacher"]
    assert "mean_over_learners" in metrics and "fidelity" in metrics
    assert {row["silo"] for row in metrics["privacy"]} == set(SILOS)
    product = LabelledSet.load(tmp_path / "three-hospitals" / "run" / "dataset")
    assert product.schema == SCHEMA and len(product) == 40
    decoded = product.table(seed=1)
    assert list(decoded) == list(SCHEMA.names) and set(decoded["readmitted"]) == {"no", "yes"}
    assert decoded["age"].dtype.kind == "i" and 0 <= decoded["age"].min() <= decoded["age"].max() <= 100


def test_the_hospitals_hold_the_same_table(tmp_path: Path) -> None:
    """All three files are read as the codes that the table in memory has."""
    silos = [Silo.initialise(silo) for silo in write("three-hospitals", tmp_path / "study", share=0.1)]
    for position, silo in enumerate(silos):
        intake = Intake()
        read = formats.load(silo.settings.data, silo.folder, intake)
        whole = rows("train")
        expected = whole.subset(np.arange(len(whole))[position::3][: len(read)])
        np.testing.assert_array_equal(read.features[:], expected.rows)
        np.testing.assert_array_equal(read.labels, expected.labels)
        assert intake == Intake(kept=400)


def test_every_study_has_a_name_in_the_command() -> None:
    assert set(command.NAMES) == {*STUDIES, hospitals.NAME}


def test_the_command_says_what_to_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = Commands("dpdd-sim", "")
    command.add_to(commands)
    assert commands.main(["example", "four-of-ten", str(tmp_path / "study")]) == 0
    said = capsys.readouterr().out
    assert "dpdd-server run" in said and all(f"dpdd-server enrol {silo} " in said for silo in SILOS)
    with pytest.raises(ConfigError, match="exists already"):
        write("four-of-ten", tmp_path / "study")
    with pytest.raises(ConfigError, match="there is no example 'nine-of-ten'"):
        write("nine-of-ten", tmp_path / "other")
