"""How a simulation splits a dataset over silos: by the scenario's seed, every record to exactly one silo.

`dirichlet` and `pathological` are Flower's partitioners (`flwr_datasets.partitioner`), on the labels alone, or
`dirichlet` on another column of a table (`data.partition_by`). The even
split is our own: Flower's `IidPartitioner` cuts a dataset, which has to be shuffled first, into equal blocks;
importing it takes seconds, and ours is the same on any machine and with any NumPy. So is the split by group.

>>> import numpy as np
>>> from dpdd.server.run.data_section import DataSection
>>> data = DataSection(dataset="mnist", silos=2, shares=(0.8, 0.2))
>>> [len(share) for share in partition(np.zeros(10, np.int64), data, seed=1)]
[8, 2]
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdd.common.data.labelled_records import LabelledRecords
from dpdd.common.data.table.schema import TableSchema
from dpdd.common.errors import ConfigError
from dpdd.common.randomness import subseed, uniforms
from dpdd.server.run.data_section import DataSection

Positions = NDArray[np.int64]

FEWEST_RECORDS = 10
"""Of a silo in a Dirichlet split, which is drawn again (ten times at most) until every silo has them."""


def partition(labels: Positions, data: DataSection, seed: int, groups: NDArray | None = None) -> list[Positions]:
    """For every silo, the sorted positions of its records; with `records_per_silo`, the first so many of them."""
    order = np.argsort(uniforms(seed, "partition", len(labels)), kind="stable")
    match data.partition:
        case "iid":
            shares = _cut(order, data)
        case "dirichlet":
            shares = [order[share] for share in _dirichlet(labels[order], data, seed)]
        case "pathological":
            shares = [order[share] for share in _pathological(labels[order], data, seed)]
        case "group":
            shares = _by_group(groups, data, seed)
    empty = sum(len(share) == 0 for share in shares)
    if empty:
        raise ConfigError(f"{empty} of {data.silos} silos would have no record; there are {len(labels)} records")
    return [np.sort(share)[: data.records_per_silo] for share in shares]


def values_to_share(records: LabelledRecords, table: TableSchema | None, column: str | None) -> Positions:
    """What `partition` goes by: the labels, or, where a column of the table is named, every record's code of that."""
    if table is None or column is None or column == table.label:
        return records.labels
    at = [feature.name for feature in table.features].index(column)
    codes, step = np.empty(len(records), np.int64), 1 << 16
    for start in range(0, len(records), step):  # features may lie in a file
        codes[start : start + step] = records.features[start : start + step][:, at]
    return codes


def _cut(order: Positions, data: DataSection) -> list[Positions]:
    """Blocks of nearly equal size, or of the sizes that `shares` says."""
    if data.shares is None:
        return np.array_split(order, data.silos)
    ends = np.rint(np.cumsum(data.shares)[:-1] * len(order)).astype(np.int64)
    return np.split(order, ends)


def _by_group(groups: NDArray | None, data: DataSection, seed: int) -> list[Positions]:
    """All records of a group to one silo: large groups first, each to the silo with the fewest records so far.

    Silos then differ by the records of one group at most. Groups of one size come in an order by the seed.
    """
    if groups is None:
        raise ConfigError('data.partition = "group" needs a source that names groups')
    names, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    if len(names) < data.silos:
        raise ConfigError(f"data.silos is {data.silos}, but there are {len(names)} groups; each silo needs one")
    drawn = uniforms(seed, "partition by group", len(names))
    held, silo_of = np.zeros(data.silos, np.int64), np.zeros(len(names), np.int64)
    for number in np.lexsort((drawn, -sizes)):
        silo_of[number] = held.argmin()
        held[silo_of[number]] += sizes[number]
    return [np.flatnonzero(silo_of[group] == silo) for silo in range(data.silos)]


def _dirichlet(labels: Positions, data: DataSection, seed: int) -> list[Positions]:
    """Each class is shared out in proportions from a symmetric Dirichlet distribution."""
    from flwr_datasets.partitioner import DirichletPartitioner

    partitioner = DirichletPartitioner(
        num_partitions=data.silos,
        partition_by="label",
        alpha=data.alpha,
        min_partition_size=FEWEST_RECORDS,
        shuffle=False,
        seed=subseed(seed, "dirichlet"),
    )
    try:
        return _through_flower(partitioner, labels)
    except ValueError:
        raise ConfigError(
            f"data.alpha = {data.alpha:g} leaves some of {data.silos} silos with fewer than {FEWEST_RECORDS} records; "
            "a larger alpha or fewer silos would do"
        ) from None


def _pathological(labels: Positions, data: DataSection, seed: int) -> list[Positions]:
    """Each silo has `classes_per_silo` classes, and each class is shared evenly by the silos that have it.

    Flower's partitioner deals single classes in turn, from a shuffled list, to as many hands as silos have classes; a
    silo takes neighbouring hands. (Its own way of giving a silo several classes can leave a class with nobody.)
    """
    from flwr_datasets.partitioner import PathologicalPartitioner

    assert data.classes_per_silo is not None
    known, positions = np.unique(labels, return_inverse=True)
    each, hands = data.classes_per_silo, data.classes_per_silo * data.silos
    if each > len(known):
        raise ConfigError(f"data.classes_per_silo is {each}, but there are {len(known)} classes")
    if hands < len(known):
        raise ConfigError(
            f"{data.silos} silos of {each} classes leave some of the {len(known)} classes with nobody; "
            f"data.classes_per_silo must be at least {-(-len(known) // data.silos)}"
        )
    rank = np.argsort(np.argsort(uniforms(seed, "pathological classes", len(known)), kind="stable"), kind="stable")
    partitioner = PathologicalPartitioner(
        num_partitions=hands,
        partition_by="label",
        num_classes_per_partition=1,
        class_assignment_mode="deterministic",
        shuffle=False,
    )
    try:
        dealt = _through_flower(partitioner, rank[positions])
    except ValueError:
        raise ConfigError(f"some class has fewer records than silos of {data.silos} that share it") from None
    return [np.concatenate(dealt[start : start + each]) for start in range(0, hands, each)]


def _through_flower(partitioner: Any, labels: Positions) -> list[Positions]:
    from datasets import Dataset

    partitioner.dataset = Dataset.from_dict({"label": labels, "position": np.arange(len(labels))})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        count = partitioner.num_partitions
        return [np.asarray(partitioner.load_partition(i).with_format("numpy")["position"]) for i in range(count)]
