"""Sums of one-hot contributions, by counting: the integers of `ClippedSum.add` at a fraction of its work.

A record of a table adds the same few numbers as every other of its class, and only where it adds them depends on what
it holds. So its norm is known before it is read: `CountedSum` clips these numbers once per class, as one short row, to
whole numbers, and then counts. A record is given by the places of its numbers, which must be different ones and lie in
the same segments for all records: then the squares of its whole numbers are those of the short row, whose norm is
checked in exact arithmetic, and adding or removing a record changes the sum by that norm, at most 1. Of an outer
product one factor is such a row, and the other the same row at the record's class (`Layout.products` of classes · D
rows and D columns).

>>> from dpdd.common.privacy.clipping import FIXED_POINT_ONE, global_segment
>>> total = CountedSum(Layout((global_segment("cells", 5, classes=2),)))
>>> total.count(OneHot(np.array([[0, 3], [1, 3]]), (0.6, 0.8)), np.array([0, 1]))
>>> from dpdd.common.privacy.entropy import SeededEntropy
>>> from dpdd.common.privacy.events import NonPrivate
>>> from dpdd.common.privacy.privatise import privatise
>>> (privatise(total, NonPrivate(), SeededEntropy(1)).arrays["cells"] / FIXED_POINT_ONE).round(3).tolist()
[[0.6, 0.6, 0.0, 1.6, 0.0]]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdd.common.privacy.clipping import ClippedSum, Layout, Segment, clip_to_grid, factor_to_grid

BLOCK = 1 << 15
"""Records at a time: enough to count fast."""
COPIES = 12
"""So many times a block's places are in memory at most: as rows that are read ahead, as codes, side by side, sorted."""

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
        self, contributions: OneHot, labels: NDArray[np.int64], factors: Mapping[str, OneHot] | None = None
    ) -> None:
        """Add a block of records, with the `factors` of the outer products. ValueError before anything was added."""
        if self._sums is None:
            raise RuntimeError("this sum was privatised already; a new release needs a new sum")
        layout, factors = self.layout, factors or {}
        names = [segment.name for segment in layout.products]
        if sorted(factors) != sorted(names):
            raise ValueError(f"this layout wants outer products {names}, not {sorted(factors)}")
        _check(contributions, layout.width, len(labels))
        for segment in layout.products:
            left, right = segment.factors or (0, 0)
            if left != layout.classes * right:
                raise ValueError(f"segment {segment.name!r} is no outer product of a row with itself at its class")
            _check(factors[segment.name], right, len(labels))
        if not len(labels):
            return
        if labels.min() < 0 or labels.max() >= layout.classes:
            raise IndexError("a record has a label that is none")
        self._count_plain(contributions, labels)
        for segment in layout.products:
            _count_products(self._sums[segment.name][0], segment, factors[segment.name], labels)

    def _count_plain(self, rows: OneHot, labels: NDArray[np.int64]) -> None:
        """Labels whose records add the same numbers to the same rows are counted together."""
        assert self._sums is not None
        layout, slots = self.layout, _slots(self.layout, rows.places)
        groups: dict[tuple[Any, ...], int] = {}
        group_of = np.zeros(layout.classes, np.int64)
        for label in np.unique(labels).tolist():
            grid = _short_grid(layout, slots, rows.values, label)
            key = (tuple(grid), *(segment.rows_of[label] for segment in layout.plain))
            group_of[label] = groups.setdefault(key, len(groups))
        own_group = group_of[labels]
        for index, (segment, columns) in enumerate(zip(layout.plain, layout.columns(), strict=True)):
            starts = own_group * segment.width - columns.start
            for slot in slots[index]:
                found = np.bincount(starts + rows.places[:, slot], minlength=len(groups) * segment.width)
                for (grid, *rows_of), counts in zip(groups, found.reshape(len(groups), -1), strict=True):
                    for row in rows_of[index]:
                        self._sums[segment.name][row] += grid[slot] * counts


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


def _count_products(sums: NDArray[np.int64], segment: Segment, rows: OneHot, labels: NDArray[np.int64]) -> None:
    """Add the outer products, class by class and pair of slots by pair of slots; (j, i) are the counts of (i, j)."""
    assert segment.factors is not None
    width = segment.factors[1]
    matrices = sums.reshape(-1, width, width)  # a view: what is added to it is added to the sums
    left, right = (factor_to_grid(np.array([rows.values]), segment, side)[0].astype(np.int64) for side in (0, 1))
    present, classes = np.unique(labels, return_inverse=True)
    places = np.ascontiguousarray(rows.places.T)
    first, last = places.min(axis=1), places.max(axis=1)
    places -= first[:, None]
    sizes = (last - first + 1).tolist()
    cells = [slice(start, start + size) for start, size in zip(first.tolist(), sizes, strict=True)]
    pairs = np.empty(len(labels), np.int64)
    for one, size in enumerate(sizes):
        of_class = classes * size + places[one]
        for other in range(one, len(sizes)):
            np.multiply(of_class, sizes[other], out=pairs)
            np.add(pairs, places[other], out=pairs)
            found = np.bincount(pairs, minlength=len(present) * size * sizes[other])
            found = found.reshape(len(present), size, sizes[other])
            matrices[present, cells[one], cells[other]] += left[one] * right[other] * found
            if other > one:
                matrices[present, cells[other], cells[one]] += left[other] * right[one] * found.swapaxes(1, 2)
