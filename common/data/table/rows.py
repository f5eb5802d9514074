"""Records of a table as mechanisms and learners see them: codes without the label's column, and labels.

A row is float32, because that is what passes through a mechanism; codes are whole numbers, which float32 holds exactly.

>>> from dpdd.common.data.table.columns import Categorical, Numeric
>>> schema = TableSchema(label="sick", columns=(
...     Numeric(name="age", low=0, high=100, bins=10), Categorical(name="sick", categories=("no", "yes")),
...     Categorical(name="ward", categories=("heart", "lung"), missing=True)))
>>> rows, labels = rows_and_labels(schema, np.array([[4, 1, 0], [9, 0, 2]], np.int32))
>>> rows.tolist(), labels.tolist()
([[4.0, 0.0], [9.0, 2.0]], [1, 0])
>>> codes_of(schema, rows, labels).tolist()
[[4, 1, 0], [9, 0, 2]]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdd.common.data.table.schema import TableSchema


def rows_and_labels(
    schema: TableSchema, codes: NDArray[np.integer[Any]]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Codes of all columns as rows (n, columns without the label) and labels (n)."""
    at = schema.label_position
    return np.delete(codes, at, axis=1).astype(np.float32), codes[:, at].astype(np.int64)


def codes_of(schema: TableSchema, rows: NDArray[np.floating[Any]], labels: NDArray[np.int64]) -> NDArray[np.int32]:
    """The inverse of `rows_and_labels`."""
    return np.insert(rows.astype(np.int32), schema.label_position, labels.astype(np.int32), axis=1)


def odd_rows(schema: TableSchema, rows: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    """Which rows hold something that is no code of their column: no whole number, or out of range."""
    return ~proper_rows(rows, [column.size for column in schema.features])


def proper_rows(rows: NDArray[np.floating[Any]], sizes: Sequence[int]) -> NDArray[np.bool_]:
    """Which rows hold a code of every column, where these are so many: NaN is none, and neither is a fraction."""
    with np.errstate(invalid="ignore"):
        proper: NDArray[np.bool_] = ((rows >= 0) & (rows < np.array(sizes)) & (rows == np.floor(rows))).all(axis=1)
    return proper
