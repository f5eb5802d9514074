"""Simulated silos: each has a share of one dataset in a folder of its own, with its own budget and ledger."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from pyarrow import parquet

from dpdd.client.silo import Silo
from dpdd.common.data.formats import labels as label_formats
from dpdd.common.data.labelled_records import LabelledRecords
from dpdd.common.data.table.schema import TableSchema
from dpdd.common.data.table.toml import toml_of
from dpdd.common.errors import ConfigError
from dpdd.common.files import idx
from dpdd.common.methods.registry import query
from dpdd.common.models.choice import AUTO, comes_with_dpdd
from dpdd.common.progress import Console
from dpdd.common.synthesis.arrow_table import arrow_table
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.scenarios.simulator.budgets import budget_for_both
from dpdd.scenarios.simulator.partition import partition, values_to_share
from dpdd.server.evaluation.at_silos import QUERY
from dpdd.server.run.own_data import silo_records
from dpdd.server.run.roster import Roster
from dpdd.server.run.scenario import Scenario, task_silo

NAMES = ("north", "east", "south", "west")


def set_up(scenario: Scenario, folder: Path, console: Console, noise_seed: int | None = None) -> list[Silo]:
    """The simulated silos in `folder/silos`, made if they are not there yet."""
    names = silo_names(scenario.data.silos)
    scenario.privacy.check_silos(names)
    tasks: list[tuple[str, ...]] = []
    if scenario.continual:
        tasks = scenario.continual.split(scenario.schema.classes)
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
    whole, held = silo_records(scenario.data, scenario.seed)
    groups = None if whole.groups is None else whole.groups[held]
    shares = [np.arange(len(held))] * len(names)
    if not alone:
        values = values_to_share(whole, scenario.schema.table, scenario.data.partition_by)
        shares = partition(values[held], scenario.data, scenario.seed, groups)
    making = folder / ".silos.partial"
    shutil.rmtree(making, ignore_errors=True)
    for name, share, own in zip(names, shares, brings, strict=True):
        for full_name, classes, records in _by_task(name, whole.subset(held[share]), scenario.schema.classes, own):
            epsilon = scenario.privacy.epsilon_of(name)
            write_silo(making / full_name, full_name, scenario, records, classes, noise_seed, epsilon)
    making.rename(home)
    return [Silo.initialise(home / name) for name in folders]


def _tasks_of(position: int, silos: int, tasks: list[tuple[str, ...]], alone: bool) -> dict[int, tuple[str, ...]]:
    """The tasks, by number, that a silo has records of: all of them, or every so-manieth."""
    if alone and silos > len(tasks):
        raise ConfigError(f"{silos} silos cannot bring one of {len(tasks)} tasks each: data.silos is too large")
    numbered = enumerate(tasks, start=1)
    return {number: task for number, task in numbered if not alone or (number - 1) % silos == position}


def _by_task(
    name: str, records: LabelledRecords, classes: tuple[str, ...], tasks: dict[int, tuple[str, ...]]
) -> Iterator[tuple[str, tuple[str, ...], LabelledRecords]]:
    """The silo as it is; or, for a continual run, as it is at each task: with the records of that task's classes."""
    from dpdd.server.evaluation.continual import relabelled

    if not tasks:
        yield name, classes, records
    for number, task in tasks.items():
        labels = relabelled(records.labels, classes, task)
        own = np.flatnonzero(labels >= 0)
        yield task_silo(name, number), task, LabelledRecords(records.features[own], labels[own])


def silo_names(count: int) -> list[str]:
    """`north`, `east`, … for a few silos, `silo-001`, … for many."""
    return list(NAMES[:count]) if count <= len(NAMES) else [f"silo-{i:03d}" for i in range(1, count + 1)]


def write_silo(
    folder: Path,
    name: str,
    scenario: Scenario,
    share: LabelledRecords,
    classes: tuple[str, ...],
    noise_seed: int | None = None,
    epsilon: float | None = None,
) -> None:
    """A silo folder as an operator would make it: data files and a `silo.toml` with one release's `epsilon`.

    Where the scenario also evaluates at the silos, the budget is for both, and the policy allows it.
    """
    folder.mkdir(parents=True)
    table = scenario.schema.table
    source = _data_files(folder, share, classes) if table is None else _table_file(folder, share, table)
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
    chosen = query(scenario.method.name)
    own = [name for name in chosen.backbones(chosen.settings(scenario.method.settings)) if not _ships(name)]
    backbones = f"backbones = {json.dumps(own)}\n" if own else ""
    public = chosen.public_datasets(chosen.settings(scenario.method.settings))
    backbones += f"public_datasets = {json.dumps(public)}\n" if public else ""
    text = f"""\
# A simulated silo of the scenario {scenario.name!r}: its people come from one dataset, split over silos.
name = {json.dumps(name)}

[data]
{source}

[budget]
epsilon = {epsilon!r}
delta = {delta!r}

[policy]
methods = {json.dumps(methods)}
epsilon_per_request = {each[0]!r}
delta_per_request = {each[1]!r}
approval = "auto"
{backbones}{holdout}"""
    text += f"\n[simulation]\nallow_no_noise = {str(unprotected).lower()}\n"
    text += f"noise_seed = {noise_seed}\n" if noise_seed is not None else ""
    (folder / "silo.toml").write_text(text, encoding="utf-8")


def _ships(backbone: str) -> bool:
    return backbone == AUTO or comes_with_dpdd(backbone)


def _data_files(folder: Path, share: LabelledRecords, classes: tuple[str, ...]) -> str:
    """Write the records; the lines of `[data]` that say where they are."""
    declared = (
        f"classes = {json.dumps(list(classes), ensure_ascii=False)}\n"
        f"shape = {json.dumps(list(share.features.shape[1:]))}"
    )
    features = share.features[:]
    pixels, positions = features.dtype == np.uint8, label_formats.may_be_positions(classes)
    if pixels and positions and features.shape[1] == 1 and len(classes) <= 256:
        idx.write(folder / "images.idx", features[:, 0])
        idx.write(folder / "labels.idx", share.labels.astype(np.uint8))
        return f'format = "idx"\npath = "images.idx"\nlabels = "labels.idx"\n{declared}'
    labels = share.labels if positions else np.array(classes)[share.labels]
    np.savez(folder / "records.npz", images=features, labels=labels)
    extent = "" if pixels else "value_range = [0.0, 1.0]\n"
    return f'format = "npz"\npath = "records.npz"\n{extent}{declared}'


def _table_file(folder: Path, share: LabelledRecords, table: TableSchema) -> str:
    """The same for rows of a table: codes become values in their bins, which are read as the same codes."""
    rows = LabelledSet(share.features[:], share.labels, table.classes, schema=table)
    parquet.write_table(arrow_table(rows), folder / "records.parquet")
    return f'format = "parquet"\npath = "records.parquet"\n{toml_of(table)}'


def roster_of(silos: Iterable[Silo]) -> Roster:
    """The names and public keys of these silos, as a coordinator knows them."""
    return Roster({silo.settings.name: silo.public_key for silo in silos})
