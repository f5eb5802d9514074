"""Many silos on one machine: each has a share of a public dataset in a folder of its own, with its own ledger."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dpdd.client.silo import Silo
from dpdd.common.data import benchmarks
from dpdd.common.data.benchmarks import LabelledImages
from dpdd.common.errors import ConfigError
from dpdd.common.files import idx
from dpdd.common.progress import Console
from dpdd.common.synthesis.runner import SynthesisRunner
from dpdd.scenarios.simulator.partition import partition
from dpdd.server.run.roster import Roster
from dpdd.server.run.scenario import Scenario, task_silo

Engine = Literal["in-process", "exchange", "ray"]
NAMES = ("north", "east", "south", "west")


def run(
    name: str,
    scenario: Scenario,
    folder: Path,
    console: Console,
    *,
    noise_seed: int | None = None,
    engine: Engine = "in-process",
    workers: int = 1,
    runner: SynthesisRunner | None = None,
) -> dict[str, Any]:
    """Set up the silos (once), run the real ClientApp and ServerApp on an `engine`; what `metrics.json` holds.

    In process, so many `workers` play silos at once; the `runner` is the coordinator's.
    A continual scenario runs once more in `joint/`, with all classes at once and silos of its own: the ceiling. That is
    always in process.
    """
    runner = runner or SynthesisRunner()
    if engine == "exchange":
        from dpdd.scenarios.simulator import loopback

        metrics = loopback.run(name, scenario, folder, console, noise_seed=noise_seed, runner=runner)
    elif engine == "ray":
        from dpdd.scenarios.simulator import flower_simulation

        metrics = flower_simulation.run(name, scenario, folder, console, noise_seed=noise_seed, runner=runner)
    else:
        metrics = _in_process(name, scenario, folder, console, noise_seed, workers, runner)
    if scenario.continual and scenario.continual.joint:
        metrics["continual"]["joint"] = _joint(scenario, folder / "joint", console, noise_seed, workers, runner)
        (folder / "metrics.json").write_text(json.dumps(metrics, indent=2, ensure_ascii=False) + "\n")
    return metrics


def _in_process(
    name: str,
    scenario: Scenario,
    folder: Path,
    console: Console,
    noise_seed: int | None,
    workers: int,
    runner: SynthesisRunner,
) -> dict[str, Any]:
    from dpdd.client.app import make_app as client_app
    from dpdd.server.app import make_app as server_app

    # isort: split
    from flwr.app import Context, RecordDict

    from dpdd.scenarios.simulator.inprocess import InProcessGrid

    silos = set_up(scenario, folder, console, noise_seed)
    Roster({silo.settings.name: silo.public_key for silo in silos}).save(folder / "silos.json")
    grid = InProcessGrid.of(client_app(lambda who: _prefixed(console, who)), [s.folder for s in silos], workers)
    context = Context(
        run_id=1,
        node_id=0,
        node_config={},
        state=RecordDict(),
        run_config=run_config(name, folder, runner),
    )
    server_app(console)(grid, context)
    metrics: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
    return metrics


def run_config(name: str, folder: Path, runner: SynthesisRunner) -> dict[str, Any]:
    """What the ServerApp is told."""
    return {"scenario": name, "folder": str(folder), "device": runner.device, "workers": runner.workers or 0}


def _joint(
    scenario: Scenario, folder: Path, console: Console, noise_seed: int | None, workers: int, runner: SynthesisRunner
) -> dict[str, Any]:
    """What everybody learns from one run over all classes at once.

    A comparison, not a second release: its silos hold the same records, so whoever published both would have to add the
    budgets up.
    """
    from dpdd.client.app import make_app as client_app
    from dpdd.scenarios.simulator.inprocess import InProcessGrid
    from dpdd.server.run.pipeline import Run

    console.say("all classes at once, for comparison")
    at_once = scenario.model_copy(update={"continual": None})
    silos = set_up(at_once, folder, console, noise_seed)
    roster = Roster({silo.settings.name: silo.public_key for silo in silos})
    grid = InProcessGrid.of(client_app(lambda who: _prefixed(console, who)), [s.folder for s in silos], workers)
    accuracy: dict[str, Any] = Run(at_once, folder, roster, console, runner).execute(grid)["accuracy"]
    return accuracy


def set_up(scenario: Scenario, folder: Path, console: Console, noise_seed: int | None = None) -> list[Silo]:
    """The simulated silos in `folder/silos`, made if they are not there yet."""
    names = silo_names(scenario.data.silos)
    scenario.privacy.check_silos(names)
    tasks: list[tuple[str, ...]] = []
    if scenario.continual:
        tasks = scenario.continual.split(benchmarks.load(scenario.data.dataset, "test").classes)
    alone = scenario.continual is not None and scenario.continual.comes_from == "one silo each"
    brings = [_tasks_of(position, len(names), tasks, alone) for position in range(len(names))]
    folders = [task_silo(name, number) for name, own in zip(names, brings, strict=True) for number in own]
    folders = folders if tasks else names
    home = folder / "silos"
    if home.exists():
        found = sorted(path.name for path in home.iterdir())
        if found != sorted(folders):
            raise ConfigError(f"{home}: holds the silos {', '.join(found)}, not this scenario's; --fresh starts over")
        return [Silo.initialise(home / name) for name in folders]
    console("splitting the data over silos", 0, 1)
    train = benchmarks.load(scenario.data.dataset, "train")
    shares = [np.arange(len(train))] * len(names) if alone else partition(train.labels, scenario.data, scenario.seed)
    making = folder / ".silos.partial"
    shutil.rmtree(making, ignore_errors=True)
    for name, share, own in zip(names, shares, brings, strict=True):
        for full_name, records in _by_task(name, train.subset(share), own):
            epsilon = scenario.privacy.epsilon_of(name)
            write_silo(making / full_name, full_name, scenario, records, noise_seed, epsilon)
    making.rename(home)
    return [Silo.initialise(home / name) for name in folders]


def _tasks_of(position: int, silos: int, tasks: list[tuple[str, ...]], alone: bool) -> dict[int, tuple[str, ...]]:
    """The tasks, by number, that a silo has records of: all of them, or every so-manieth."""
    if alone and silos > len(tasks):
        raise ConfigError(f"{silos} silos cannot bring one of {len(tasks)} tasks each: data.silos is too large")
    numbered = enumerate(tasks, start=1)
    return {number: task for number, task in numbered if not alone or (number - 1) % silos == position}


def _by_task(
    name: str, records: LabelledImages, tasks: dict[int, tuple[str, ...]]
) -> Iterator[tuple[str, LabelledImages]]:
    """The silo as it is; or, for a continual run, as it is at each task: with the records of that task's classes."""
    from dpdd.server.evaluation.continual import of_classes

    if not tasks:
        yield name, records
    for number, task in tasks.items():
        yield task_silo(name, number), of_classes(records, task)


def silo_names(count: int) -> list[str]:
    """`north`, `east`, … for a few silos, `silo-001`, … for many."""
    return list(NAMES[:count]) if count <= len(NAMES) else [f"silo-{i:03d}" for i in range(1, count + 1)]


def write_silo(
    folder: Path,
    name: str,
    scenario: Scenario,
    share: LabelledImages,
    noise_seed: int | None = None,
    epsilon: float | None = None,
) -> None:
    """A silo folder as an operator would make it: data files and a `silo.toml` with one release's `epsilon`."""
    folder.mkdir(parents=True)
    images, labels = _data_files(folder, share)
    epsilon = scenario.privacy.epsilon if epsilon is None else epsilon
    unprotected = math.isinf(epsilon)
    epsilon = 1.0 if unprotected else epsilon
    text = f"""\
# A simulated silo of the scenario {scenario.name!r}: its people come from a public dataset.
name = {json.dumps(name)}

[data]
{images}
{labels}
classes = {json.dumps(list(share.classes))}
shape = {json.dumps(list(share.shape))}

[budget]
epsilon = {epsilon!r}
delta = {scenario.privacy.delta!r}

[policy]
methods = [{json.dumps(scenario.method.name)}]
epsilon_per_request = {epsilon!r}
delta_per_request = {scenario.privacy.delta!r}
approval = "auto"
"""
    if unprotected or noise_seed is not None:
        text += f"\n[simulation]\nallow_no_noise = {str(unprotected).lower()}\n"
        text += f"noise_seed = {noise_seed}\n" if noise_seed is not None else ""
    (folder / "silo.toml").write_text(text)


def _data_files(folder: Path, share: LabelledImages) -> tuple[str, str]:
    if share.shape[0] == 1:
        idx.write(folder / "images.idx", share.images[:, 0])
        idx.write(folder / "labels.idx", share.labels.astype(np.uint8))
        return 'format = "idx"\npath = "images.idx"', 'labels = "labels.idx"'
    np.savez(folder / "records.npz", images=share.images, labels=share.labels)
    return 'format = "npz"\npath = "records.npz"', ""


def start_over(folder: Path) -> None:
    """Remove an earlier simulation's folder; refuses to remove anything else."""
    if not folder.exists():
        return
    if not (folder / "silos.json").exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder}: this does not look like a simulation's folder; remove it yourself")
    shutil.rmtree(folder)


def _prefixed(console: Console, who: str) -> Any:
    return lambda what, done, of: console(f"{who}: {what}", done, of)


def workers_for(silos: int) -> int:
    """As many silos at once as there are processors."""
    return max(1, min(silos, os.cpu_count() or 1))
