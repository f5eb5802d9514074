"""Simulated silos: each has a share of a public dataset in a folder of its own, with its own budget and ledger."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from dpdd.client.silo import Silo
from dpdd.common.data import benchmarks
from dpdd.common.data.labelled_images import LabelledImages
from dpdd.common.errors import ConfigError
from dpdd.common.files import idx
from dpdd.common.progress import Console
from dpdd.scenarios.simulator.budgets import budget_for_both
from dpdd.scenarios.simulator.partition import partition
from dpdd.server.evaluation.at_silos import QUERY
from dpdd.server.run.roster import Roster
from dpdd.server.run.scenario import Scenario, task_silo

NAMES = ("north", "east", "south", "west")


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
        present = sorted(path.name for path in home.iterdir())
        if present != sorted(folders):
            raise ConfigError(f"{home}: holds the silos {', '.join(present)}, not this scenario's; --fresh starts over")
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
    """A silo folder as an operator would make it: data files and a `silo.toml` with one release's `epsilon`.

    Where the scenario also evaluates at the silos, the budget is for both, and the policy allows it.
    """
    folder.mkdir(parents=True)
    images, labels = _data_files(folder, share)
    epsilon = scenario.privacy.epsilon if epsilon is None else epsilon
    unprotected = math.isinf(epsilon)
    epsilon = 1.0 if unprotected else epsilon
    each, delta, methods, holdout = (
        (epsilon, scenario.privacy.delta),
        scenario.privacy.delta,
        [scenario.method.name],
        "",
    )
    evaluated = scenario.evaluation.at_silos
    if evaluated is not None:
        methods.append(QUERY)
        holdout = f"\n[evaluation]\nholdout = {evaluated.holdout!r}\n"
        if not unprotected:
            each = (max(epsilon, evaluated.epsilon), max(delta, evaluated.delta))
            epsilon, delta = budget_for_both(scenario, epsilon)
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
delta = {delta!r}

[policy]
methods = {json.dumps(methods)}
epsilon_per_request = {each[0]!r}
delta_per_request = {each[1]!r}
approval = "auto"
{holdout}"""
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


def roster_of(silos: Iterable[Silo]) -> Roster:
    """The names and public keys of these silos, as a coordinator knows them."""
    return Roster({silo.settings.name: silo.public_key for silo in silos})
