"""Rows of a table as a matrix of numbers in [0, 1], for classifiers: everything follows from the public schema.

A categorical column has a 0 or 1 for every category, a missing value being one of them. A column of numbers, days or
levels has the place of the bin or level among the others, from 0 to 1, and where values may be missing a 0 or 1 for
that beside it, with 1/2 for the place. Nothing is fitted to any record.

>>> from dpdd.common.data.table.columns import Categorical, Numeric
>>> schema = TableSchema(label="sick", columns=(
...     Numeric(name="age", low=0, high=100, bins=5, missing=True),
...     Categorical(name="ward", categories=("heart", "lung")), Categorical(name="sick", categories=("no", "yes"))))
>>> feature_names(schema)
('age', 'age missing', 'ward = heart', 'ward = lung')
>>> feature_matrix(schema, np.array([[1, 0], [5, 1]], np.float32)).tolist()
[[0.25, 0.0, 1.0, 0.0], [0.5, 1.0, 0.0, 1.0]]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpdd.common.data.table.columns import Categorical, Column
from dpdd.common.data.table.schema import TableSchema


def feature_matrix(schema: TableSchema, rows: NDArray[np.floating]) -> NDArray[np.float64]:
    """A row of numbers for every row of codes (N, columns without the label)."""
    parts = [_numbers_of(column)[rows[:, at].astype(np.int64)] for at, column in enumerate(schema.features)]
    return np.concatenate(parts, axis=1)


def feature_names(schema: TableSchema) -> tuple[str, ...]:
    """What each number of a row stands for."""
    names: list[str] = []
    for column in schema.features:
        listed = isinstance(column, Categorical)
        names += [f"{column.name} = {value}" for value in column.value_names] if listed else [column.name]
        names += [f"{column.name} missing"] if column.missing else []
    return tuple(names)


def _numbers_of(column: Column) -> NDArray[np.float64]:
    """The numbers for every code of a column (codes, numbers)."""
    if isinstance(column, Categorical):
        return np.eye(column.size)
    numbers = np.zeros((column.size, 1 + column.missing))
    numbers[: column.values, 0] = np.arange(column.values) / max(column.values - 1, 1)
    if column.missing:
        numbers[-1] = (0.5, 1.0)
    return numbers
