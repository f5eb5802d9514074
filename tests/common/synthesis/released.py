"""What a silo would release of some images, recomputed in plain floats: for tests of what is made of it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from dpdd.common.methods.sps.feature_statistics import CLASS_SUMS, COUNT, RESIDUAL, SECOND_MOMENT, Row, Summary
from dpdd.common.synthesis.statistics import Statistics
from dpdd.common.synthesis.teacher import RESIDUAL_CLIP


def statistics_of(
    table: Summary,
    images: Tensor,
    labels: Tensor,
    noise: float = 0.0,
    centre: Mapping[str, NDArray] | None = None,
) -> Statistics:
    """Sums over these images in the layout of `table`, with Gaussian noise in every entry."""
    centre = centre or {}
    one_hot = functional.one_hot(labels, table.classes).double()
    with torch.no_grad():
        rows, portraits = table.measure(images, around(table, centre, labels))
    sums = {}
    for row in table.rows:
        added = one_hot @ _rows_of(row, table).T  # (records, rows of the sum)
        sums[row.name] = added.T @ rows[:, table.columns[row.name]].double()
    if portraits is not None:
        p = portraits.double()
        if table.stage == 0:
            sums[CLASS_SUMS] = one_hot.T @ p * table.weights[CLASS_SUMS]
            sums[SECOND_MOMENT] = (p.T @ p).reshape(1, -1) * table.weights[SECOND_MOMENT]
        else:
            wrong = torch.softmax(p @ torch.from_numpy(np.asarray(centre["teacher"], np.float64)).T, 1) - one_hot
            wrong = wrong / wrong.norm(dim=1, keepdim=True).clamp_min(RESIDUAL_CLIP)
            sums[RESIDUAL] = (wrong.T @ p).reshape(1, -1) * table.weights[RESIDUAL]
    sums[COUNT] = one_hot.sum(0)[:, None] * table.count_weight
    generator = np.random.Generator(np.random.PCG64(3 + table.stage))
    noisy = {name: array.numpy() + noise * generator.standard_normal(array.shape) for name, array in sums.items()}
    return Statistics(noisy, noise, 1, centre)


def around(table: Summary, centre: Mapping[str, NDArray], labels: Tensor) -> Tensor | None:
    """What is taken off each record's rows."""
    if "rows" not in centre:
        return None
    scale = torch.cat([torch.full((row.width,), table.weights[row.name]) for row in table.rows])
    return (torch.from_numpy(np.asarray(centre["rows"], np.float32)) * scale)[labels]


def _rows_of(row: Row, table: Summary) -> Tensor:
    """Which classes are added to which rows of the sum."""
    if row.scope == "global":
        return torch.ones(1, table.classes, dtype=torch.float64)
    if row.scope == "class":
        return torch.eye(table.classes, dtype=torch.float64)
    assert table.groups is not None
    members = [[float(label in group) for label in range(table.classes)] for group in table.groups.members]
    return torch.tensor(members, dtype=torch.float64)
