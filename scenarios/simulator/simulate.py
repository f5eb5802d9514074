"""Many silos on one machine: set them up (once), and run the real ClientApp and ServerApp on an engine."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

from dpdd.common.errors import ConfigError
from dpdd.common.progress import Console
from dpdd.common.synthesis.runner import SynthesisRunner
from dpdd.scenarios.simulator import real_records
from dpdd.scenarios.simulator.engines import ENGINES, IN_PROCESS
from dpdd.scenarios.simulator.simulation import Simulation
from dpdd.server.report.run_page import write_report
from dpdd.server.run.scenario import Scenario


def run(
    source: str,
    scenario: Scenario,
    folder: Path,
    console: Console,
    *,
    noise_seed: int | None = None,
    engine: str = IN_PROCESS,
    runner: SynthesisRunner | None = None,
    dataset: Path | None = None,
    rehearsal: bool = True,
    real: bool = False,
) -> dict[str, Any]:
    """Run the `scenario` that was loaded from `source`, with its `dataset`, if any; what `metrics.json` holds.

    A continual scenario runs once more in `joint/`, with all classes at once and silos of its own: the upper bound.
    That is always in process. With `real`, the learners of a table also train on the silos' rows (`real_records`).
    """
    from dpdd.server.run.checks import check_before_asking

    check_before_asking(scenario)
    if real:
        real_records.check(scenario)
    runner = runner or SynthesisRunner()
    simulation = Simulation(source, scenario, folder, console, noise_seed, runner, dataset, rehearsal)
    metrics = ENGINES[engine](simulation)
    if scenario.continual and scenario.continual.joint:
        metrics["continual"]["joint"] = _joint(simulation)
    if real:
        metrics["real"] = real_records.reference(simulation.set_up(), scenario, console)
        console.finish()
    if real or (scenario.continual and scenario.continual.joint):
        (folder / "metrics.json").write_text(json.dumps(metrics, indent=2, ensure_ascii=False) + "\n")
    write_report(folder, _command(simulation, engine, real=real))
    return metrics


def _command(simulation: Simulation, engine: str, *, real: bool) -> str:
    """The command line that makes this run again."""
    words = ["dpdd-sim", "run", simulation.source, "--out", str(simulation.folder)]
    words += [] if simulation.dataset is None else ["--source", str(simulation.dataset)]
    words += [] if simulation.noise_seed is None else ["--noise-seed", str(simulation.noise_seed)]
    words += [] if engine == IN_PROCESS else ["--engine", engine]
    words += ["--real"] if real else []
    return shlex.join(words)


def _joint(simulation: Simulation) -> dict[str, Any]:
    """The accuracy of every learner after one run over all classes at once.

    A comparison, not a second release: its silos hold the same records, so whoever published both would have to add the
    budgets up.
    """
    from dpdd.scenarios.simulator.inprocess import grid_of
    from dpdd.scenarios.simulator.silos import roster_of, set_up
    from dpdd.server.run.pipeline import Run

    console, folder = simulation.console, simulation.folder / "joint"
    console.say("all classes at once, for comparison")
    at_once = simulation.scenario.model_copy(update={"continual": None})
    silos = set_up(at_once, folder, console, simulation.noise_seed)
    coordinator = Run(at_once, folder, roster_of(silos), console, simulation.runner, rehearsal=None)
    accuracy: dict[str, Any] = coordinator.execute(grid_of(silos, console))["accuracy"]
    return accuracy


def start_over(folder: Path) -> None:
    """Remove an earlier simulation's folder; refuses to remove anything else."""
    if not folder.exists():
        return
    if not (folder / "silos.json").exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder}: this does not look like a simulation's folder; remove it yourself")
    shutil.rmtree(folder)
