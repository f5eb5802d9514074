"""What DP-KIP's gradients are taken with respect to: images as they are, and rows of a table relaxed.

A record of a table is one-hot. A row of the support set has a number in [0, 1] in every cell instead, so that it has
gradients. At the end rows must have codes again. The largest cell of each column is where decoding starts; as most of
what a relaxed set says is lost there, codes then change one by one until the rows' classifier points where the set's
own does (`code_descent`). What that is on records nobody may know, so it is read off rows drawn evenly from all codes,
as the nearest linear one, and its constant does not count: which classifier is compared is public, and so is on what.

>>> from dpdd.common.data.table.columns import Categorical, Numeric
>>> from dpdd.common.data.table.schema import TableSchema
>>> table = TableSchema(label="sick", columns=(
...     Numeric(name="age", low=0, high=100, bins=3), Categorical(name="sex", categories=("f", "m")),
...     Categorical(name="sick", categories=("no", "yes"))))
>>> run = RunDescription(table.classes, table.shape, public_seed=0, table=table)
>>> support_shape(run)
(5,)
>>> encoded(run, np.array([[2.0, 0.0]], np.float32)).tolist()
[[0.0, 0.0, 1.0, 1.0, 0.0]]
>>> largest_cells(run, np.array([[0.1, 0.2, 0.6, 0.4, 0.5]])).tolist()
[[2, 1]]
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from dpdd.common.methods.base import DataKind, RunDescription
from dpdd.common.methods.dp_kip.code_descent import improve
from dpdd.common.methods.dp_kip.kernels import FullyConnectedNTK, centred, predictions
from dpdd.common.methods.dp_kip.moments import Goal
from dpdd.common.methods.dp_kip.settings import GradientSettings, TableSettings
from dpdd.common.methods.sps_table.marginals import Marginals
from dpdd.common.methods.sps_table.settings import MethodSettings
from dpdd.common.randomness import uniforms

PROBES = 4000
"""Rows that a classifier is read off."""
_DECAY = 1e-3
"""A column's cells add up to 1, so their weights are only known but for a constant."""


def support_shape(run: RunDescription) -> tuple[int, ...]:
    """Of one record of the support set, and of records as the kernel's features see them."""
    return run.shape if run.kind is DataKind.IMAGE else (cells_of(run).width,)


def encoded(run: RunDescription, records: NDArray[np.float32]) -> NDArray[np.float32]:
    """Images as they are; rows one-hot, of NaN where a number is no code of its column."""
    return records if run.kind is DataKind.IMAGE else cells_of(run).one_hot(records)


def largest_cells(run: RunDescription, support: NDArray[np.floating]) -> NDArray[np.int64]:
    """The code of the largest cell of each column of relaxed rows (N, cells)."""
    return np.stack([support[:, cells].argmax(axis=1) for cells in cells_of(run).cells], axis=1)


def decoded(
    run: RunDescription, settings: GradientSettings, support: NDArray[np.float64], labels: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Relaxed rows (N, cells) as codes."""
    layout, table = cells_of(run), TableSettings()
    places = uniforms(run.public_seed, "dp-kip rows to read a classifier off", PROBES * len(layout.sizes))
    codes = np.floor(places.reshape(PROBES, -1) * np.array(layout.sizes)).astype(np.float32)
    hot = torch.from_numpy(layout.one_hot(codes)).double()
    targets = centred(torch.from_numpy(labels), len(run.classes)).double()
    said = predictions(FullyConnectedNTK(settings.depth), hot, torch.from_numpy(support), targets, settings.ridge)
    hot = hot - hot.mean(0)
    covariance = hot.T @ hot / PROBES
    weights = torch.linalg.solve(covariance + _DECAY * torch.eye(len(covariance)), hot.T @ said / PROBES).T
    pad = torch.nn.functional.pad
    goal = Goal.of(pad(covariance, (0, 1, 0, 1)), pad(weights, (0, 1)))
    rows = improve(largest_cells(run, support), labels, goal, layout.sizes, table.ridge, table.sweeps)
    return rows.astype(np.float32)


def cells_of(run: RunDescription) -> Marginals:
    """The cells of a table's columns, side by side."""
    return Marginals(run.columns, len(run.classes), MethodSettings())
