"""Evaluation at the silos, end to end: figures beside the real ones, a card that adds up, and nobody pays twice."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from dpdd.client.silo import Silo
from dpdd.common.methods.registry import method
from dpdd.common.privacy.accounting import gaussian_epsilon
from dpdd.common.privacy.events import from_json, gaussian_mu
from dpdd.common.progress import Console
from dpdd.common.wire.answer import SignedReleaseBytes
from dpdd.common.wire.request import Kind, decode_request
from dpdd.scenarios.simulator import simulate
from dpdd.scenarios.simulator.budgets import budget_for_both
from dpdd.server.cli import main as server
from dpdd.server.run.scenario import Scenario, load_scenario
from dpdd.server.run.store import Store

SCENARIO = """
name = "judged"
[data]
dataset = "fashion-slice"
silos = 3
records_per_silo = 400
[privacy]
epsilon = {epsilon}
[method]
name = "dp-merf"
[method.settings]
features = 60
[synthesis]
images_per_class = 3
[synthesis.settings]
steps = {steps}
batch = 40
[evaluation]
width = 4
steps = 5
convnet_dd = {{ runs = 1, width = 4, steps = 2 }}
[evaluation.at_silos]
epsilon = {evaluation}
holdout = 0.25
models = ["convnet", "teacher"]
"""


def scenario_file(folder: Path, epsilon: float = 2.0, evaluation: float = 1.0, steps: int = 10) -> Path:
    path = folder / "judged.toml"
    path.write_text(SCENARIO.format(epsilon=epsilon, evaluation=evaluation, steps=steps))
    return path


def run(path: Path, folder: Path, console: Console | None = None) -> dict[str, Any]:
    scenario = load_scenario(str(path))
    return simulate.run(str(path), scenario, folder, console or Console(quiet=True), noise_seed=5)


class Listening(Console):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[str]]:
    folder = tmp_path_factory.mktemp("judged")
    console = Listening()
    return folder, run(scenario_file(folder), folder / "run", console), console.said


def ledger_entries(folder: Path) -> dict[str, int]:
    found = {}
    for home in sorted((folder / "silos").iterdir()):
        ledger = Silo(home).ledger()
        found[home.name] = len(ledger.entries())
        ledger.close()
    return found


def test_silos_evaluate_what_they_held_out_and_the_width_is_said_before(
    judged: tuple[Path, dict[str, Any], list[str]],
) -> None:
    _, metrics, said = judged
    shown = metrics["at_silos"]
    assert shown["silos"] == ["east", "north", "south"] and shown["held_out"] and shown["missing"] == {}
    assert list(shown["models"]) == ["convnet"]  # DP-MERF has no teacher, which is said
    assert any("teacher is not evaluated" in line for line in said)
    foretold = next(line for line in said if "before anybody spends" in line)
    assert "1 model at 3 silos, ε = 1 and δ = 1e-05 each" in foretold and "as many as the releases count" in foretold
    assert 200 < shown["models"]["convnet"]["records"] < 400
    accuracy, real = shown["models"]["convnet"]["accuracy"], metrics["accuracy"]["convnet"]["mean"]
    assert accuracy["low"] - 0.05 < real < accuracy["high"] + 0.05
    assert json.loads((judged[0] / "run" / "metrics.json").read_text()) == metrics


def test_the_card_states_both_releases_and_what_holds_for_both(
    judged: tuple[Path, dict[str, Any], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = judged[0] / "run"
    card = json.loads((folder / "card.json").read_text())
    rows = {row["silo"]: row for row in card["silos"]}
    for row in card["evaluation_at_silos"]:
        assert row["epsilon"] == 1.0 and rows[row["silo"]]["epsilon"] == 2.0
        mus = [gaussian_mu(from_json(each["event"])) for each in (row, rows[row["silo"]])]
        exact = gaussian_epsilon(math.hypot(*mus), 1e-5)  # type: ignore[arg-type]
        assert exact <= row["together"]["epsilon"] < exact + 2e-4 and row["together"]["delta"] == 1e-5
        assert 2.0 < row["together"]["epsilon"] < 3.0
    text = (folder / "CARD.md").read_text()
    assert text.count("together") >= 4 and "that the silos held out" in text
    assert server(["verify", str(folder)]) == 0
    assert "6 releases" in capsys.readouterr().out
    out = judged[0] / "published"
    assert server(["export", str(folder), "--out", str(out)]) == 0
    assert server(["verify", str(out)]) == 0


@pytest.mark.parametrize("lie", ["together", "epsilon", "held_out", "moved", "event"])
def test_a_card_that_lies_about_an_evaluation_is_found_out(
    lie: str, judged: tuple[Path, dict[str, Any], list[str]], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("dataset", "store"):
        shutil.copytree(judged[0] / "run" / name, folder / name)
    card = json.loads((judged[0] / "run" / "card.json").read_text())
    row = card["evaluation_at_silos"][0]
    match lie:
        case "together":
            row["together"]["epsilon"] -= 0.01
        case "epsilon":
            row["epsilon"] = 0.5
        case "held_out":
            row["held_out"] = False
        case "moved":
            card["silos"].append(card["evaluation_at_silos"].pop())
        case "event":
            row["event"][0]["sigma"] *= 2.0
    (folder / "card.json").write_text(json.dumps(card))
    assert server(["verify", str(folder)]) != 0


def test_running_again_asks_nobody_to_pay_again_even_for_another_dataset(
    judged: tuple[Path, dict[str, Any], list[str]], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(judged[0] / "run", folder)
    before = ledger_entries(folder)
    again = run(scenario_file(tmp_path), folder)
    assert again["at_silos"]["models"] == judged[1]["at_silos"]["models"] and again["at_silos"]["current"]
    console = Listening()
    other = run(scenario_file(tmp_path, steps=11), folder, console)
    assert other["dataset"]["sha256"] != again["dataset"]["sha256"]
    assert not other["at_silos"]["current"] and other["at_silos"]["models"] == again["at_silos"]["models"]
    assert any("an earlier dataset" in line for line in console.said)
    assert ledger_entries(folder) == before


def test_a_silo_that_refuses_is_named_and_the_run_goes_on(tmp_path: Path) -> None:
    path, folder = scenario_file(tmp_path), tmp_path / "run"
    simulate.Simulation(str(path), load_scenario(str(path)), folder, Console(quiet=True), 5).set_up()
    names = ["north", "east", "south"]
    for count, name in enumerate(names[:2], start=1):
        silo = folder / "silos" / name / "silo.toml"
        silo.write_text(silo.read_text().replace('["dp-merf", "evaluation"]', '["dp-merf"]'))
        metrics = run(path, folder)
        if count == 1:  # it was asked before the second one stopped allowing it
            assert metrics["at_silos"]["silos"] == ["east", "south"]
            assert "does not allow evaluation" in metrics["at_silos"]["missing"]["north"]
            card = json.loads((folder / "card.json").read_text())
            assert [row["silo"] for row in card["silos"]] == ["east", "north", "south"]
            assert [row["silo"] for row in card["evaluation_at_silos"]] == ["east", "south"]
            assert server(["verify", str(folder)]) == 0
    shutil.rmtree(folder)
    simulate.Simulation(str(path), load_scenario(str(path)), folder, Console(quiet=True), 5).set_up()
    for name in names:
        silo = folder / "silos" / name / "silo.toml"
        silo.write_text(silo.read_text().replace('["dp-merf", "evaluation"]', '["dp-merf"]'))
    metrics = run(path, folder)
    assert metrics["at_silos"]["models"] == {} and set(metrics["at_silos"]["missing"]) == set(names)
    assert metrics["accuracy"] and server(["verify", str(folder)]) == 0


def test_a_simulation_without_noise_evaluates_without_noise(tmp_path: Path) -> None:
    metrics = run(scenario_file(tmp_path, math.inf, math.inf), tmp_path / "run")
    assert metrics["at_silos"]["epsilon"] is None
    assert metrics["at_silos"]["privacy"][0]["together"]["epsilon"] is None
    assert metrics["at_silos"]["models"]["convnet"]["records"] == pytest.approx(
        round(metrics["at_silos"]["models"]["convnet"]["records"]), abs=0.01
    )
    with pytest.raises(Exception, match="inf where privacy"):
        load_scenario(str(scenario_file(tmp_path, 1.0, math.inf)))


def test_evaluation_is_not_for_continual_tasks(tmp_path: Path) -> None:
    path = scenario_file(tmp_path)
    path.write_text(path.read_text() + "[continual]\ntasks = 2\n")
    with pytest.raises(Exception, match="beside continual tasks"):
        load_scenario(str(path))


@pytest.mark.parametrize("name", ["dp-merf", "ndpdc"])
def test_a_simulated_budget_admits_both_releases(name: str, tmp_path: Path) -> None:
    """ε added up for Gaussians; more for events that sample, whose filter loses something."""
    settings = {"features": 20} if name == "dp-merf" else {"draws": 4, "width": 4, "rate": 0.5}
    scenario = Scenario.model_validate(
        {
            "name": "both",
            "data": {"dataset": "fashion-slice", "silos": 1, "records_per_silo": 1500},
            "privacy": {"epsilon": 1.0},
            "method": {"name": name, "settings": settings},
            "evaluation": {"at_silos": {"epsilon": 0.5}},
        }
    )
    epsilon, delta = budget_for_both(scenario, 1.0)
    assert delta == 2e-5 and (epsilon == 1.5 if name == "dp-merf" else 1.5 <= epsilon < 6.0)
    path = tmp_path / "both.toml"
    path.write_text(
        f"""
name = "both"
[data]
dataset = "fashion-slice"
silos = 1
records_per_silo = 1500
[method]
name = "{name}"
[method.settings]
{chr(10).join(f"{key} = {value}" for key, value in settings.items())}
[synthesis]
images_per_class = 1
[synthesis.settings]
steps = 2
[evaluation]
width = 4
steps = 2
convnet_dd = {{ runs = 1, width = 4, steps = 2 }}
[evaluation.at_silos]
epsilon = 0.5
""".replace("[synthesis.settings]\nsteps = 2\n", "" if name == "ndpdc" else "[synthesis.settings]\nsteps = 2\n")
    )
    assert method(name).name == name
    metrics = run(path, tmp_path / "run")
    assert metrics["at_silos"]["silos"] == ["north"], metrics["at_silos"]["missing"]
    together = metrics["at_silos"]["privacy"][0]["together"]["epsilon"]
    assert 1.0 < together < 1.5
    store = Store(tmp_path / "run" / "store")
    kinds = [decode_request(data).kind for data in store.requests()]
    store.close()
    assert kinds[-1] is Kind.EVALUATION
    silo = Silo(tmp_path / "run" / "silos" / "north")
    store = Store(tmp_path / "run" / "store")
    assert isinstance(silo.answer(store.requests()[-1]), SignedReleaseBytes)  # the same bytes, at no cost
    store.close()
