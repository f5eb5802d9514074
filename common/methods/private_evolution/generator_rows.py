"""Rows of a table, of no data at all: every code is as likely as any other, until votes say otherwise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpdd.common.data.table.columns import Categorical, Column
from dpdd.common.methods.private_evolution.generator import Generator
from dpdd.common.randomness import uniforms

CROSSED = 0.5
"""Of the cells that change, the share that comes from the mate."""


class RowGenerator(Generator):
    """Cells of a schema's columns."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = tuple(columns)

    def random(self, count: int, seed: int) -> NDArray[np.int32]:
        """Every code of a column is as likely."""
        sizes = np.array([column.size for column in self.columns])
        places = uniforms(seed, "private evolution rows", count * len(sizes)).reshape(count, -1)
        return np.floor(places * sizes).astype(np.int32)

    def variation(
        self, records: NDArray[np.int32], mates: NDArray[np.int32], strength: float, seed: int
    ) -> NDArray[np.int32]:
        """A share `strength` of the cells changes: to the mate's, to a number nearby, or to any category."""
        drawn = uniforms(seed, "private evolution cells", 3 * records.size).reshape(3, *records.shape)
        changes, crossed, anything = drawn[0] < strength, drawn[1] < CROSSED, self.random(len(records), seed)
        codes = np.where(crossed, mates, anything)
        for number, column in enumerate(self.columns):
            if isinstance(column, Categorical):
                continue
            reach = max(1.0, 0.5 * strength * column.values)
            nearby = np.rint(records[:, number] + reach * (2.0 * drawn[2, :, number] - 1.0))
            close = np.clip(nearby, 0, column.values - 1).astype(np.int32)
            known = ~crossed[:, number] & (records[:, number] < column.values)
            codes[known, number] = close[known]
        return np.where(changes, codes, records).astype(np.int32)
