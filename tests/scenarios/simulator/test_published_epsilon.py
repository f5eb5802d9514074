"""A card says what a method's paper would say of the same noise, and `verify` computes that again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dpdd.common.methods.dp_cda.published import theorem_1
from dpdd.common.privacy.events import PoissonGaussian, from_json, parts
from dpdd.common.progress import Console
from dpdd.scenarios.simulator.simulate import run
from dpdd.server.cli import main as server
from dpdd.server.run.scenario import load_scenario

SCENARIO = """
name = "study"
[data]
dataset = "fashion-slice"
silos = 2
records_per_silo = 300
[privacy]
epsilon = 4.0
[method]
name = "dp-cda"
mode = "{mode}"
[method.settings]
order = 8
class_size = 30
mixtures_per_class = 3
[synthesis]
images_per_class = 3
[evaluation]
runs = 0
"""


@pytest.mark.parametrize("mode", ["centralised", "decentralised"])
def test_the_figure_of_the_paper_stands_beside_the_guarantee(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    path, folder = tmp_path / "study.toml", tmp_path / "run"
    path.write_text(SCENARIO.format(mode=mode))
    run(str(path), load_scenario(str(path)), folder, Console(quiet=True))
    card = json.loads((folder / "card.json").read_text())
    (event,) = parts(from_json(card["silos"][0]["event"]))
    assert isinstance(event, PoissonGaussian) and (event.rate, event.steps) == (8 / 30, 3)
    expected = theorem_1(event.sigma / 8, 8, 300, 30, 1e-5)
    for row in card["silos"]:
        assert row["epsilon"] == 4.0
        assert row["epsilon_as_published"] == pytest.approx(expected, rel=1e-3)
    assert f"ε = {card['silos'][0]['epsilon_as_published']:g} for" in (folder / "CARD.md").read_text()
    assert server(["verify", str(folder)]) == 0
    card["silos"][1]["epsilon_as_published"] = 0.5
    (folder / "card.json").write_text(json.dumps(card))
    capsys.readouterr()
    assert server(["verify", str(folder)]) != 0
    assert "epsilon_as_published of" in capsys.readouterr().err
