"""``dpdd-sim reproduce PAPER``: a paper's tables beside our own rows, measured now, at a scale that two cores can bear.

Our rows are runs of the real system (`simulator.simulate`), each in a folder of its own that is kept, so that a
second call only does what is missing. Figures of the paper are copied from it and marked as such; datasets, networks
and budgets differ, so the rows are to be read side by side, not subtracted.

A paper is a module with `add_options`, `cells` (the settings to run, each a scenario) and `report` (the tables), and an
entry in `PAPERS`.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpdd.common.cli import Commands
from dpdd.common.progress import Console
from dpdd.scenarios.papers import cda, dosser, geng, kip, pe, sps
from dpdd.scenarios.papers.base import Cell, Outcome, Paper, spread

LEARNERS = ("convnet-dd", "resnet18-dd", "densenet121-dd", "convnet", "convnet-cda", "krr", "krr-ntk", "teacher")
PAPERS: Mapping[str, Paper] = {"sps": sps, "dosser": dosser, "cda": cda, "geng": geng, "kip": kip, "pe": pe}


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add(
        "reproduce",
        lambda options: _reproduce(PAPERS[options.paper], options),
        "print a paper's tables beside our own rows",
        "Runs every setting once per seed; what is in the folder already is not run again.",
    )
    choice = parser.add_subparsers(dest="paper", metavar="PAPER", required=True, help=" or ".join(PAPERS))
    for name, paper in PAPERS.items():
        options = choice.add_parser(name, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        options.add_argument("--dataset", default="fashion-slice", help="what the silos hold")
        options.add_argument("--seeds", type=int, default=3, metavar="N", help="runs per setting")
        options.add_argument("--out", type=Path, metavar="FOLDER", help="if not runs/reproduce-PAPER")
        options.add_argument("--quiet", action="store_true", help="no progress")
        paper.add_options(options)


def _reproduce(paper: Paper, options: argparse.Namespace) -> None:
    console = Console(quiet=options.quiet)
    folder: Path = options.out or Path("runs") / f"reproduce-{options.paper}"
    outcomes: dict[str, list[Outcome]] = {}
    for cell in paper.cells(options):
        outcomes[cell.key] = [_measure(cell, seed, folder, console) for seed in range(options.seeds)]
        accuracy = {name: spread([outcome.accuracy.get(name) for outcome in outcomes[cell.key]]) for name in LEARNERS}
        console.say(
            f"{cell.title}: " + ", ".join(f"{name} {value} %" for name, value in accuracy.items() if value != "–")
        )
    print("\n".join(paper.report(options, outcomes)))
    print("\nNoise came from seeds, so that this can be repeated: it protects nobody.")


def _measure(cell: Cell, seed: int, folder: Path, console: Console) -> Outcome:
    """One run; from its `metrics.json` if it was run before."""
    from dpdd.scenarios.simulator import simulate
    from dpdd.server.run.scenario import load_scenario

    home, file = folder / f"{cell.key}-{seed}", folder / f"{cell.key}-{seed}.toml"
    text = cell.scenario.replace("{seed}", str(seed))
    if not ((home / "metrics.json").exists() and file.exists() and file.read_text() == text):
        folder.mkdir(parents=True, exist_ok=True)
        simulate.start_over(home)
        if cell.like:
            _continue_from(folder / f"{cell.like}-{seed}", home)
        file.write_text(text)
        console.say(f"{cell.title}, seed {seed}")
        simulate.run(str(file), load_scenario(str(file)), home, console, noise_seed=seed)
    metrics: dict[str, Any] = json.loads((home / "metrics.json").read_text())
    accuracy = {name: score["mean"] for name, score in metrics["accuracy"].items()}
    epsilon = max((row["epsilon"] for row in metrics["privacy"] if row["epsilon"] is not None), default=None)
    sets = {"": metrics, **{row["name"]: row for row in metrics.get("also", ())}}
    means = {
        name: {metric: mean["mean"] for metric, mean in about.get("mean_over_learners", {}).items()}
        for name, about in sets.items()
    }
    return Outcome(accuracy, epsilon, _bytes_per_silo(home), sum(metrics["seconds"].values()), means)


def _continue_from(earlier: Path, home: Path) -> None:
    """A copy of an earlier run as it was after its releases."""
    for name in ("silos", "store"):
        shutil.copytree(earlier / name, home / name)
    shutil.copy(earlier / "silos.json", home)


def _bytes_per_silo(home: Path) -> int:
    """The signed releases of a silo together, as they travel; of the silo with the most."""
    sizes: dict[str, int] = {}
    for path in home.glob("silos/*/state/outbox/*.release"):
        silo = path.parents[2].name
        sizes[silo] = sizes.get(silo, 0) + path.stat().st_size
    return max(sizes.values(), default=0)
