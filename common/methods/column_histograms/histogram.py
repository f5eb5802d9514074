"""What a noisy histogram of a column says: how many records, how many are missing, where they begin and end, quantiles.

Every cell has independent Gaussian noise of one known standard deviation s, so a sum of n cells has s√n. A *window* of
cells stands out where its sum is more than z·s√n, with z so large that no window of any column would, of all that are
tried, with probability 1 - `ALARM` if there were no records at all: then records are in it for sure. The range of a
column reaches from the first window that stands out, counted by its right end, to the last, by its left end. Outside of
it there may be records, but none that are told from noise; how many is the difference of three noisy figures: all
records, those without a value, those in the range.

A quantile q of the values in the range: with L of its n cells on the left of an edge, D = (1 - q) Σ_left - q Σ_right
is 0 where the quantile is, and has noise s √((1-q)² L + q² (n-L)). An edge where D is certainly negative has the
quantile on its right, one where D is certainly positive on its left: `CERTAIN` standard deviations.

>>> from dpdd.common.data.table.columns import Numeric
>>> age = Numeric(name="age", low=0, high=100, bins=20, integer=True)
>>> counts = np.array([0.0] * 4 + [500.0] * 12 + [0.0] * 4)
>>> known = Histogram(age, counts, noise=5.0, threshold=4.0)
>>> known.range, round(known.quantile(0.5).value), known.quantile(0.01)
((4, 16), 51, Quantile(share=0.01, value=21.6, low=21.0, high=26.0))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from dpdd.common.data.table.columns import Column, Date, Numeric
from dpdd.common.data.table.schema import TableSchema
from dpdd.common.methods.column_histograms.query import CELLS, column_cells, record_weight
from dpdd.common.synthesis.statistics import Statistics

Floats = NDArray[np.float64]

ALARM = 0.05
"""How often some window of some column is taken for one with records, though it has none."""
CERTAIN = 1.96
"""Standard deviations to either side of a figure: 95 of 100 times."""


@dataclass(frozen=True)
class Quantile:
    """Where this share of the values is below, and between which edges of the grid that is, 95 of 100 times."""

    share: float
    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Histogram:
    """The noisy counts of a column's codes, that of a missing value last; `noise` is their standard deviation.

    `threshold` is how many standard deviations of its noise a window has to have to stand out.
    """

    column: Column
    counts: Floats
    noise: float
    threshold: float

    @property
    def values(self) -> Floats:
        """The counts of values alone."""
        return self.counts[: self.column.values]

    @property
    def missing(self) -> float:
        """How many records have no value; 0 where the column does not allow that."""
        return float(self.counts[-1]) if self.column.missing else 0.0

    @property
    def numeric(self) -> Numeric | None:
        """The column as numbers, days being numbers too; None for categories and levels."""
        if isinstance(self.column, Date):
            return self.column.days
        return self.column if isinstance(self.column, Numeric) else None

    @cached_property
    def range(self) -> tuple[int, int] | None:
        """The first cell of the range and the first one behind it; None where nothing stands out."""
        sums = np.concatenate([[0.0], np.cumsum(self.values)])
        start, stop = len(self.values), 0
        first_end, last_start = len(self.values) + 1, -1
        for length in _lengths(len(self.values)):  # the shortest first, which stays where others end at the same cell
            inside = sums[length:] - sums[:-length]
            out = np.flatnonzero(inside > self.threshold * self.noise * math.sqrt(length) + 1e-9)
            if not len(out):
                continue
            if out[0] + length < first_end:
                start, first_end = int(out[0]), int(out[0]) + length
            if out[-1] > last_start:
                stop, last_start = int(out[-1]) + length, int(out[-1])
        return (start, stop) if stop else None

    def outside(self, records: float, spread: float) -> tuple[float, float]:
        """How many records, of so many with such a standard deviation, have a value elsewhere; and its own."""
        start, stop = self.range or (0, 0)
        rest = records - self.missing - float(self.values[start:stop].sum())
        return rest, math.hypot(spread, self.noise * math.sqrt(stop - start + self.column.missing))

    def quantile(self, share: float) -> Quantile:
        """Of the values in the range, which there has to be, for numbers and days."""
        column = self.numeric
        if column is None or self.range is None:
            raise ValueError(f"column {self.column.name!r} has no quantiles")
        start, stop = self.range
        inside, edges = self.values[start:stop], column.edges[start : stop + 1]
        left = np.concatenate([[0.0], np.cumsum(inside)])
        total, count, cells = left[-1], len(inside), np.arange(len(inside) + 1)
        beyond = left - share * total
        spread = CERTAIN * self.noise * np.sqrt((1 - share) ** 2 * cells + share**2 * (count - cells))
        below, above = np.flatnonzero(beyond + spread < 0.0), np.flatnonzero(beyond - spread > 0.0)
        last = int(below[-1]) if len(below) else 0
        right = above[above > last]
        low, high = float(edges[last]), float(edges[right[0]] if len(right) else edges[-1])
        rising = (np.maximum.accumulate(left) + np.minimum.accumulate(left[::-1])[::-1]) / 2
        at = int(np.clip(np.searchsorted(rising, share * total, side="left"), 1, count))
        height = rising[at] - rising[at - 1]
        part = (share * total - rising[at - 1]) / height if height > 0.0 else 0.5
        between = column.to_scale(edges[at - 1 : at + 1])
        value = column.from_scale(np.array([between[0] + np.clip(part, 0.0, 1.0) * (between[1] - between[0])]))[0]
        return Quantile(share, float(np.clip(value, low, high)), low, high)


def _lengths(cells: int) -> list[int]:
    """How long windows are: 1, 2, 4, ... cells."""
    return [1 << power for power in range(cells.bit_length()) if 1 << power <= cells]


def histograms(schema: TableSchema, statistics: Statistics) -> tuple[Histogram, ...]:
    """Those of all columns, from the sums over silos."""
    weight = record_weight(schema)
    noise, cells = statistics.noise / weight, statistics.sums[CELLS][0] / weight
    windows = sum(column.values - length + 1 for column in schema.columns for length in _lengths(column.values))
    threshold = stands_out(windows)
    return tuple(
        Histogram(column, cells[own], noise, threshold)
        for column, own in zip(schema.columns, column_cells(schema), strict=True)
    )


def stands_out(windows: int) -> float:
    """How many standard deviations none of so many sums of noise exceeds, with probability 1 - `ALARM`.

    >>> round(stands_out(1), 2), round(stands_out(10_000), 2)
    (1.64, 4.42)
    """
    return NormalDist().inv_cdf(1.0 - ALARM / windows)


def record_count(found: Sequence[Histogram]) -> tuple[float, float]:
    """How many records there are, and the standard deviation of that: each column's sum, the less noise the more.

    Every record that is counted has one cell in each column.
    """
    weights = np.array([1.0 / len(each.counts) for each in found])
    totals = np.array([each.counts.sum() for each in found])
    return float(weights @ totals / weights.sum()), found[0].noise / math.sqrt(float(weights.sum()))
