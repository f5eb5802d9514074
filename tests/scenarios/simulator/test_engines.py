"""One scenario and one noise seed on every engine: the same releases, so the same images."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dpdd.scenarios.cli import main
from dpdd.server.cli import main as server
from tests.alone import ROOT, alone
from tests.scenarios.tiny_runs import releases, tiny_scenario

JUDGE = "convnet_dd = { runs = 1, width = 4, steps = 2 }"


def scenario(folder: Path, more: str = "") -> Path:
    path = folder / "tiny.toml"
    path.write_text(tiny_scenario(more=more))
    return path


def run(path: Path, out: Path, *options: str, noise_seed: int = 3) -> dict[str, Any]:
    """What `metrics.json` holds after `dpdd-sim run`."""
    command = ["run", str(path), "--out", str(out), "--noise-seed", str(noise_seed), "--workers", "1", "--quiet"]
    command += options
    assert main(command) == 0
    metrics: dict[str, Any] = json.loads((out / "metrics.json").read_text())
    return metrics


def test_the_dataset_shows_which_releases_it_was_made_from(tmp_path: Path) -> None:
    """Otherwise, comparing datasets in the other tests would say nothing."""
    path = scenario(tmp_path)
    seeds = {run(path, tmp_path / str(seed), noise_seed=seed)["dataset"]["sha256"] for seed in (3, 4)}
    path.write_text(path.read_text().replace("silos = 2", "silos = 1"))
    assert len(seeds | {run(path, tmp_path / "alone")["dataset"]["sha256"]}) == 3


def test_the_exchange_makes_the_same_dataset_as_in_process(tmp_path: Path) -> None:
    path = scenario(tmp_path)
    here = run(path, tmp_path / "here")
    there = run(path, tmp_path / "there", "--engine", "exchange")
    assert there["dataset"] == here["dataset"] and there["privacy"] == here["privacy"]
    assert (tmp_path / "there" / "coordinator" / "authority.pem").exists()
    assert not (tmp_path / "here" / "coordinator").exists()
    assert server(["verify", str(tmp_path / "there")]) == 0
    sent = releases(tmp_path / "there")
    assert len(sent) == 2
    again = run(path, tmp_path / "there")  # in process, by silos that joined a coordinator: they repeat themselves
    assert releases(tmp_path / "there") == sent and again["dataset"] == here["dataset"]


def test_the_exchange_takes_the_synthesis_runner_and_runs_the_upper_bound_of_continual_learning(tmp_path: Path) -> None:
    path = scenario(tmp_path, more="[continual]\ntasks = 2\n")
    path.write_text(path.read_text().replace("silos = 2", "silos = 1"))
    path.write_text(path.read_text().replace("runs = 0", f"runs = 1\nwidth = 4\nsteps = 2\nbatch = 8\n{JUDGE}"))
    here, there = run(path, tmp_path / "here"), run(path, tmp_path / "there", "--engine", "exchange", "--device", "cpu")
    assert there["dataset"] == here["dataset"] and there["continual"] == here["continual"]
    assert there["continual"]["joint"]["convnet"]["mean"] > 0


def test_a_refused_option_of_the_server_reaches_the_researcher(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", str(scenario(tmp_path)), "--out", str(tmp_path / "run"), "--engine", "exchange", "--workers", "0"]
    assert main(command) != 0
    assert "at least 1" in capsys.readouterr().err


def flower_commands() -> dict[tuple[str, ...], set[str]]:
    """The commands of Flower in docs/engines.md, and the options that it gives them."""
    found: dict[tuple[str, ...], set[str]] = {}
    for line in (ROOT / "docs" / "engines.md").read_text().splitlines():
        words = line.split()
        if words[:1] in (["flower-superlink"], ["flower-supernode"], ["flwr"]):
            program = tuple(words[:2] if words[0] == "flwr" else words[:1])
            found.setdefault(program, set()).update(word for word in words if word.startswith("--"))
    return found


@pytest.mark.parametrize("program", flower_commands())
def test_the_options_in_the_documentation_are_flowers(program: tuple[str, ...]) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    plain = {"PATH": path, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    shown = subprocess.run(
        [*program, "--help"], env=os.environ | plain | quiet, capture_output=True, text=True, check=True, timeout=120
    ).stdout
    assert flower_commands()[program] <= set(re.findall(r"--[a-z-]+", shown))


@pytest.mark.slow
def test_a_stock_superlink_with_supernodes_makes_the_same_dataset(tmp_path: Path) -> None:
    path, out = scenario(tmp_path), tmp_path / "there"
    alone(["tests.scenarios.simulator.flower_stack", str(path), str(out)], seconds=280.0)
    here, there = run(path, tmp_path / "here"), json.loads((out / "metrics.json").read_text())
    assert there["dataset"] == here["dataset"] and there["privacy"] == here["privacy"]
    assert server(["verify", str(out)]) == 0


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_flowers_simulation_makes_the_same_dataset(tmp_path: Path) -> None:
    path, out = scenario(tmp_path), tmp_path / "there"
    command = ["run", str(path), "--out", str(out), "--noise-seed", "3", "--workers", "1", "--engine", "ray"]
    alone(["dpdd.scenarios.cli", *command], seconds=280.0)
    here, there = run(path, tmp_path / "here"), json.loads((out / "metrics.json").read_text())
    assert there["dataset"] == here["dataset"] and there["privacy"] == here["privacy"]


def test_without_ray_the_engine_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpdd.scenarios.simulator.flower_simulation.find_spec", lambda _name: None)
    assert main(["run", str(scenario(tmp_path)), "--out", str(tmp_path / "run"), "--engine", "ray", "--quiet"]) != 0
    assert "pip install 'dpdd[ray]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
