"""Which marginals are released: both sides lay out the same sums, from the request alone.

A row is one-hot: a 1 in the cell of its code, for every column. The segment `columns` sums up one-hot rows by class:
the class-conditional one-way marginals. The segment `pairs` sums up outer products of one-hot rows with themselves, by
class: every pair of columns twice, in blocks off the diagonal. (Twice costs nothing. An outer product of d ones with d
ones has norm d, and two noisy sums of one pair have 1/√2 of the noise of one; d(d-1)/2 pairs, each once, have norm
√(d(d-1)/2), hardly less than d/√2. What is left over, the blocks on the diagonal, are the columns' own marginals.)

>>> from dpdd.common.data.table.columns import Categorical, Numeric
>>> columns = (Numeric(name="age", low=0, high=100, bins=3), Categorical(name="sex", categories=("f", "m")))
>>> marginals = Marginals(columns, classes=2, settings=MethodSettings())
>>> marginals.one_hot(np.array([[2.0, 0.0], [np.nan, 1.0], [0.5, 1.0]])).tolist()
[[0.0, 0.0, 1.0, 1.0, 0.0], [nan, nan, nan, nan, nan], [nan, nan, nan, nan, nan]]
>>> [(segment.name, segment.rows, segment.width) for segment in marginals.layout.segments]
[('columns', 2, 5), ('count', 2, 1), ('pairs', 1, 50)]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdd.common.data.table.columns import Column
from dpdd.common.data.table.rows import proper_rows
from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.sps_table.settings import MethodSettings
from dpdd.common.privacy.clipping import (
    FIXED_POINT_ONE,
    Layout,
    Segment,
    class_segment,
    factor_scale,
    product_segment,
)

COLUMNS, PAIRS, COUNT = "columns", "pairs", "count"
MOST_NUMBERS = 1 << 24
"""The most numbers of a release: 128 MiB."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Marginals:
    """The cells of a table's columns, side by side, and those of the groups that they have in pairs."""

    columns: tuple[Column, ...]
    classes: int
    settings: MethodSettings

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """How many codes each column has."""
        return tuple(column.size for column in self.columns)

    @cached_property
    def cells(self) -> tuple[slice, ...]:
        """Where each column's cells lie in a one-hot row."""
        return _side_by_side(self.sizes)

    @cached_property
    def groups(self) -> tuple[NDArray[np.int64], ...]:
        """The group of every code, for each column: neighbours share one, and a missing value has its own."""
        found = []
        for column in self.columns:
            count = min(column.values, self.settings.levels)
            of_values = np.arange(column.values) * count // column.values
            found.append(np.append(of_values, count) if column.missing else of_values)
        return tuple(found)

    @cached_property
    def group_cells(self) -> tuple[slice, ...]:
        """Where each column's groups lie in a one-hot row of groups."""
        return _side_by_side([int(group[-1]) + 1 for group in self.groups])

    @property
    def width(self) -> int:
        """Cells of a one-hot row."""
        return self.cells[-1].stop

    @property
    def group_width(self) -> int:
        """Cells of a one-hot row of groups."""
        return self.group_cells[-1].stop

    @property
    def has_pairs(self) -> bool:
        """Whether pairs are released: not of a single column."""
        return self.settings.pairs > 0.0 and len(self.columns) > 1

    @cached_property
    def layout(self) -> Layout:
        """The released sums."""
        segments = [class_segment(COLUMNS, self.width, self.classes), class_segment(COUNT, 1, self.classes)]
        return Layout((*segments, self._pairs) if self.has_pairs else tuple(segments))

    @cached_property
    def column_weight(self) -> float:
        """What a record adds to the cell of its code."""
        share = 1.0 - (self.settings.pairs if self.has_pairs else 0.0)
        return math.sqrt(share * (1.0 - self.settings.count_weight**2) / len(self.columns))

    @cached_property
    def pair_weight(self) -> float:
        """What a record adds to the cell of a pair of its codes: a product of two whole numbers, as clipping has it."""
        left, right = (round(factor_scale(self._pairs, side) / math.sqrt(len(self.columns))) for side in (0, 1))
        return left * right / FIXED_POINT_ONE

    @property
    def _pairs(self) -> Segment:
        norm = math.sqrt(self.settings.pairs * (1.0 - self.settings.count_weight**2))
        return product_segment(PAIRS, self.classes * self.group_width, self.group_width, self.classes, norm)

    def one_hot(self, rows: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
        """A row of zeros and ones for each row of codes; of NaN, where one of them is no code of its column."""
        return _one_hot(rows, self.sizes, self.cells)

    def grouping(self) -> NDArray[np.float32]:
        """A matrix from cells of codes to cells of groups, of zeros and ones."""
        matrix = np.zeros((self.width, self.group_width), np.float32)
        for cells, part, group in zip(self.cells, self.group_cells, self.groups, strict=True):
            matrix[np.arange(cells.start, cells.stop), part.start + group] = 1.0
        return matrix

    def apart(self) -> NDArray[np.bool_]:
        """Which cells of the matrix of pairs belong to two different columns."""
        column = np.repeat(np.arange(len(self.columns)), [part.stop - part.start for part in self.group_cells])
        different: NDArray[np.bool_] = column[:, None] != column
        return different


def marginals(settings: MethodSettings, run: RunDescription) -> Marginals:
    """Those of a run; ConfigError where they are more than a release may hold."""
    found = Marginals(run.columns, len(run.classes), settings)
    numbers = found.classes * (found.width + found.group_width**2 * found.has_pairs)
    if numbers > MOST_NUMBERS:
        raise ConfigError(
            f"the marginals of {len(run.columns)} columns, which have up to {max(found.sizes)} values, of "
            f"{found.classes} classes are {numbers:,} numbers, and a release holds {MOST_NUMBERS:,}: lower `levels`, "
            "or release no pairs (`pairs` = 0)"
        )
    return found


def _one_hot(rows: NDArray[np.floating[Any]], sizes: Sequence[int], cells: Sequence[slice]) -> NDArray[np.float32]:
    hot = np.zeros((len(rows), cells[-1].stop), np.float32)
    fine = proper_rows(rows, sizes)
    places = np.where(fine[:, None], rows, 0.0).astype(np.int64) + [part.start for part in cells]
    hot[np.arange(len(rows))[:, None], places] = 1.0
    hot[~fine] = np.nan
    return hot


def _side_by_side(sizes: Sequence[int]) -> tuple[slice, ...]:
    stops = np.cumsum([0, *sizes])
    return tuple(slice(int(start), int(stop)) for start, stop in pairwise(stops))
