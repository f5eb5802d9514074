"""Sums of one-hot contributions, by counting: the integers of `ClippedSum.add` at a fraction of its work.

A record of a table adds the same few numbers as every other of its class, and only where it adds them depends on what
it holds. So its norm is known before it is read: `CountedSum` clips these numbers once per class, as one short row, to
whole numbers, and then counts. A record is given by the places of its numbers, which must be different ones and lie in
the same segments for all records: then the squares of its whole numbers are those of the short row, whose norm is
checked in exact arithmetic, and adding or removing a record changes the sum by that norm, at most 1.

>>> from dpdd.common.privacy.clipping import FIXED_POINT_ONE, global_segment
>>> total = CountedSum(Layout((global_segment("cells", 5, classes=2),)))
>>> total.count(OneHot(np.array([[0, 3], [1, 3]]), (0.6, 0.8)), np.array([0, 1]))
>>> (total._take()["cells"] / FIXED_POINT_ONE).round(3).tolist()
[[0.6, 0.6, 0.0, 1.6, 0.0]]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdd.common.privacy.clipping import ClippedSum, Layout, Segment, clip_to_grid, factor_to_grid

BLOCK = 1 << 14
"""Records at a time: enough to count fast."""
COPIES = 12
"""Arrays of whole numbers that a block's places are in at the same time, at most."""

Places = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class OneHot:
    """Rows of zeros but for `values[k]` in column `places[record, k]`; places rise from left to right."""

    places: Places
    values: tuple[float, ...]


class CountedSum(ClippedSum):
    """A clean sum of one-hot contributions; everything else about it is a `ClippedSum`."""

    __slots__ = ()

    def count(
        self,
        contributions: OneHot,
        labels: NDArray[np.int64],
        factors: Mapping[str, tuple[OneHot, OneHot]] | None = None,
    ) -> None:
        """Add a block of records, with the `factors` of the outer products. ValueError before anything was added."""
        if self._sums is None:
            raise RuntimeError("this sum was privatised already; a new release needs a new sum")
        factors = factors or {}
        names = [segment.name for segment in self.layout.products]
        if sorted(factors) != sorted(names):
            raise ValueError(f"this layout wants outer products {names}, not {sorted(factors)}")
        _check(contributions, self.layout.width, len(labels))
        for segment in self.layout.products:
            for side, width in zip(factors[segment.name], segment.factors or (), strict=True):
                _check(side, width, len(labels))
        if not len(labels):
            return
        if labels.min() < 0 or labels.max() >= self.layout.classes:
            raise IndexError("a record has a label that is none")
        slots = _slots(self.layout, contributions.places)
        for label in np.unique(labels).tolist():
            chosen = labels == label
            places = np.ascontiguousarray(contributions.places[chosen].T)
            grid = _short_grid(self.layout, slots, contributions.values, label)
            for segment, columns, own in zip(self.layout.plain, self.layout.columns(), slots, strict=True):
                sums = np.zeros(segment.width, np.int64)
                for value, same in _alike(grid, own):
                    sums += value * np.bincount((places[same] - columns.start).ravel(), minlength=segment.width)
                for row in segment.rows_of[label]:
                    self._sums[segment.name][row] += sums
            for segment in self.layout.products:
                left, right = factors[segment.name]
                ours = OneHot(left.places[chosen], left.values), OneHot(right.places[chosen], right.values)
                _add_products(self._sums[segment.name][0], segment, *ours)


def _check(rows: OneHot, width: int, count: int) -> None:
    places = rows.places
    if places.shape != (count, len(rows.values)) or not np.isfinite(rows.values).all():
        raise ValueError(f"{count} records have {len(rows.values)} places and numbers each, not {places.shape}")
    rising = places[:, 1:] > places[:, :-1]
    if places.size and not (rising.all() and places[:, 0].min() >= 0 and places[:, -1].max() < width):
        raise ValueError(
            f"the places of a record rise from 0 to {width - 1}: two at one place would add up beyond norm 1"
        )


def _slots(layout: Layout, places: Places) -> list[Sequence[int]]:
    """Which of a record's numbers lie in each plain segment; ValueError unless that is the same for all records."""
    stops = [columns.stop for columns in layout.columns()]
    lowest, highest = (np.searchsorted(stops, extreme(axis=0), side="right") for extreme in (places.min, places.max))
    if (lowest != highest).any():
        raise ValueError("the numbers of all records lie in the same segments")
    return [np.flatnonzero(lowest == index).tolist() for index in range(len(layout.plain))]


def _short_grid(layout: Layout, slots: Sequence[Sequence[int]], values: Sequence[float], label: int) -> list[int]:
    """The numbers of a record of this class on the grid, clipped as `ClippedSum` does, in a layout of nothing else."""
    row: list[float] = []
    short: list[Segment] = []
    for segment, own in zip(layout.plain, slots, strict=True):
        row += [values[slot] for slot in own] or [0.0]  # a segment is not empty
        short.append(replace(segment, width=max(len(own), 1)))
    clipped = clip_to_grid(np.array([row]), np.array([label]), Layout((*short, *layout.products)))[0]
    grid = [0] * len(values)
    for start, own in zip(np.cumsum([0, *(segment.width for segment in short)]), slots, strict=False):
        for offset, slot in enumerate(own):
            grid[slot] = int(clipped[start + offset])
    return grid


def _alike(grid: Sequence[int], slots: Sequence[int]) -> list[tuple[int, list[int]]]:
    """The numbers that are not 0, each with all slots that have it."""
    found: dict[int, list[int]] = {}
    for slot in slots:
        if grid[slot]:
            found.setdefault(grid[slot], []).append(slot)
    return list(found.items())


def _add_products(sums: NDArray[np.int64], segment: Segment, left: OneHot, right: OneHot) -> None:
    """Add the outer products of records of one class, pair of places by pair of places.

    Where the left places are the right ones moved by a constant, the block of two slots is the transpose of that of the
    two in the other order, which is counted once.
    """
    assert segment.factors is not None
    matrix = sums.reshape(segment.factors)
    weights = [factor_to_grid(np.array([each.values]), segment, side)[0] for side, each in enumerate((left, right))]
    rows, columns = (np.ascontiguousarray(each.places.T) for each in (left, right))
    moved = int(rows[0, 0] - columns[0, 0])
    mirrored = rows.shape == columns.shape and bool((rows - columns == moved).all())
    ends = [(int(each.min()), int(each.max()) + 1) for each in columns]
    for one, at in enumerate(rows):
        start, stop = int(at.min()), int(at.max()) + 1
        for other in range(one if mirrored else 0, len(columns)):
            first, last = ends[other]
            width = last - first
            pairs: NDArray[Any] = (at - start) * width + (columns[other] - first)
            found = np.bincount(pairs, minlength=(stop - start) * width).reshape(stop - start, width)
            matrix[start:stop, first:last] += int(weights[0][one] * weights[1][other]) * found
            if mirrored and other > one:
                block = found.T * int(weights[0][other] * weights[1][one])
                matrix[first + moved : last + moved, start - moved : stop - moved] += block
