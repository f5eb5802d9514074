"""Private Evolution in whole runs: rounds over silos, with budgets of their own, task after task, and in each silo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dpdd.common.errors import ConfigError
from dpdd.common.progress import Console
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.scenarios.simulator import simulate
from dpdd.server.cli import main as server
from dpdd.server.run.requests import make_request
from dpdd.server.run.scenario import load_scenario


def scenario(folder: Path, method: str = "", more: str = "", privacy: str = "epsilon = 10.0") -> Path:
    file = folder / "votes.toml"
    file.write_text(f"""
name = "votes"
[data]
dataset = "fashion-slice"
silos = 2
records_per_silo = 200
[privacy]
{privacy}
[method]
name = "private-evolution"
{method}
[method.settings]
rounds = 3
population = 8
features = 0
[synthesis]
images_per_class = 3
[evaluation]
runs = 0
{more}""")
    return file


def run(file: Path) -> tuple[dict[str, Any], LabelledSet]:
    folder = file.parent / "run"
    metrics = simulate.run(str(file), load_scenario(str(file)), folder, Console(quiet=True), noise_seed=1)
    assert metrics == json.loads((folder / "metrics.json").read_text())
    return metrics, LabelledSet.load(folder / "dataset")


def test_silos_vote_in_rounds_with_budgets_of_their_own(tmp_path: Path) -> None:
    metrics, product = run(scenario(tmp_path, privacy="epsilon = 10.0\nepsilons = { east = 5.0 }"))
    assert metrics["rounds"]["count"] == 3 and len(product) == 30
    assert server(["verify", str(tmp_path / "run")]) == 0, "the votes lead to what silos were asked about"
    assert {row["silo"]: row["epsilon"] for row in metrics["privacy"]} == {"north": 10.0, "east": 5.0}


def test_each_silo_evolves_a_set_of_its_own(tmp_path: Path) -> None:
    _, product = run(scenario(tmp_path, 'mode = "decentralised"'))
    assert 0 < len(product) <= 30 and product.images.shape[1:] == (1, 28, 28)


def test_classes_come_as_tasks(tmp_path: Path) -> None:
    _, product = run(scenario(tmp_path, more="[continual]\ntasks = 2\n"))
    assert len(product.classes) == 10 and len(product) == 30


def test_the_runs_own_data_are_no_pool(tmp_path: Path) -> None:
    file = scenario(tmp_path)
    pool = 'generator = "pool"\npool = "fashion-mnist"\npopulation = 8'
    file.write_text(file.read_text().replace("population = 8", pool))
    with pytest.raises(ConfigError, match="private data is fashion-slice, and the product would be made of images of"):
        make_request(load_scenario(str(file)))
