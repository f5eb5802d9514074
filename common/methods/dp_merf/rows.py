"""Rows of a table as points that a Gaussian kernel can compare: one coordinate for each category, one for a number.

Two categories are at distance 1, as are the ends of a column of numbers, days or levels. A missing value is a category
of its own, or a second coordinate beside the number. Everything follows from the public schema.

>>> from dpdd.common.data.table.columns import Categorical, Numeric
>>> sex = Categorical(name="sex", categories=("f", "m"))
>>> age = Numeric(name="age", low=0, high=100, bins=4, missing=True)
>>> [points_of(column).shape for column in (sex, age)], dimensions((sex, age))
([(2, 2), (5, 2)], 4)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpdd.common.data.table.columns import Categorical, Column


def points_of(column: Column) -> NDArray[np.float32]:
    """A point for every code."""
    if isinstance(column, Categorical):
        return np.float32(0.5**0.5) * np.eye(column.size, dtype=np.float32)
    points = np.zeros((column.size, 1 + column.missing), dtype=np.float32)
    points[: column.values, 0] = (np.arange(column.values) + 0.5) / column.values
    if column.missing:
        points[-1] = (0.5, 1.0)
    return points


def dimensions(columns: Sequence[Column]) -> int:
    """How many coordinates a row has."""
    return sum(column.size if isinstance(column, Categorical) else 1 + column.missing for column in columns)


def angles(codes: Tensor, columns: Sequence[Column], omega: Tensor) -> Tensor:
    """The products of the rows' points with the frequencies `omega`; NaN for a row with a code that is not finite."""
    total = torch.zeros(len(codes), omega.shape[1], device=omega.device)
    start = 0
    for at, column in enumerate(columns):
        points = torch.from_numpy(points_of(column)).to(omega.device)
        products = points @ omega[start : start + points.shape[1]]
        start += points.shape[1]
        total += products[torch.nan_to_num(codes[:, at]).clamp(0, column.size - 1).long()]
    finite = torch.isfinite(codes).all(dim=1, keepdim=True)
    return torch.where(finite, total, torch.nan)
