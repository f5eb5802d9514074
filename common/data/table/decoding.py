"""Codes back into the original columns: their types, categories and days.

A bin becomes a number in it: drawn with a generator, evenly on the column's scale, or its middle without one. Encoding
what was decoded gives the same codes. Each column is a masked array; the mask marks missing values.

>>> from dpdd.common.data.table.columns import Numeric
>>> decode_column(Numeric(name="age", low=0, high=100, bins=10, integer=True), np.array([0, 9])).tolist()
[5, 96]
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dpdd.common.data.table.columns import Categorical, Column, Date, Numeric, Ordinal
from dpdd.common.data.table.schema import TableSchema

Decoded = np.ma.MaskedArray[Any, Any]


def decode(
    schema: TableSchema, codes: npt.NDArray[np.integer], generator: np.random.Generator | None = None
) -> dict[str, Decoded]:
    """Every column of a block of rows, by name and in the schema's order."""
    return {
        column.name: decode_column(column, codes[:, at], generator)  # in order: a seed gives the same table
        for at, column in enumerate(schema.columns)
    }


def decode_column(
    column: Column, codes: npt.NDArray[np.integer], generator: np.random.Generator | None = None
) -> Decoded:
    """The values of one column: int64 or float64, datetime64[D], or text."""
    if len(codes) and not (codes.min() >= 0 and codes.max() < column.size):
        raise ValueError(f"codes of column {column.name!r} must lie in 0 to {column.size - 1}")
    absent = codes == column.values
    present = np.where(absent, 0, codes)
    if isinstance(column, Categorical | Ordinal):
        values: npt.NDArray[Any] = np.array(column.categories, dtype=object)[present]
    elif isinstance(column, Date):
        values = _numbers(column.days, present, generator).astype("datetime64[D]")
    else:
        values = _numbers(column, present, generator)
    return np.ma.MaskedArray(values, mask=absent)


def _numbers(
    column: Numeric, codes: npt.NDArray[np.integer], generator: np.random.Generator | None
) -> npt.NDArray[Any]:
    edges = column.edges
    low, high = edges[codes], edges[codes + 1]
    share = np.full(len(codes), 0.5) if generator is None else generator.random(len(codes))
    if column.integer:
        whole = low + np.floor(share * (high - low))
        return np.minimum(whole, high - 1).astype(np.int64)
    start, end = column.to_scale(low), column.to_scale(high)
    numbers = column.from_scale(start + share * (end - start))
    return np.clip(numbers, low, np.where(high == edges[-1], high, np.nextafter(high, -np.inf)))
