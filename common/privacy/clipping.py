"""Per-record L2 clipping in fixed point: the sum over records has L2 sensitivity 1, exactly.

A record's contribution is a vector, laid out in named segments. It is clipped to L2 norm 1 and put on an integer grid
of 2^`FIXED_POINT_BITS` steps per unit, rounding towards zero, so that its integer norm is at most `FIXED_POINT_ONE`;
that is checked in exact arithmetic, and a contribution that failed would be dropped. Sums are int64: the order of
records, the batch size and the device leave no trace in them.

A contribution with a NaN or an infinity anywhere becomes zero, its count coordinate and its outer products included:
the sum cannot be poisoned, and the record is as protected as any other.

Second moments would make long contributions (D² numbers per record) out of short ones. A segment may therefore be an
outer product: its two factors are put on integer grids of their own, whose bounds multiply to the segment's `norm`,
and the sum over records is one exact matrix product. The norm of an outer product is the product of the norms, so
the bound holds without ever making it; the plain segments are clipped to what is left of norm 1.

>>> import numpy as np
>>> layout = Layout((class_segment("sums", width=2, classes=3), class_segment("counts", width=1, classes=3)))
>>> rows = np.array([[3.0, 4.0, 0.0], [np.nan, 0.0, 0.0]])
>>> clip_to_grid(rows, np.array([0, 1]), layout) / FIXED_POINT_ONE
array([[0.59999943, 0.79999924, 0.        ],
       [0.        , 0.        , 0.        ]])
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FIXED_POINT_BITS = 20
FIXED_POINT_ONE = 1 << FIXED_POINT_BITS

_MARGIN = 1.0 - 1e-9  # more than float64 loses in a norm over 2^20 coordinates


@dataclass(frozen=True)
class Segment:
    """Columns of a contribution, and the rows of the sum they are added to.

    `rows_of[label]` are the rows that a record of that class is added to: one row for all classes, one row per class,
    or several (overlapping groups of classes); a record in several rows counts that often towards its norm.

    `factors` are the widths of the two factors of an outer product, and `norm` is its share of norm 1; a plain segment
    has none, and shares what is left with the other plain segments. `symmetric` says that both factors are always the
    same vector: then the sum is a symmetric matrix without negative eigenvalues.
    """

    name: str
    width: int
    rows: int
    rows_of: tuple[tuple[int, ...], ...]
    factors: tuple[int, int] | None = None
    norm: float = 0.0
    symmetric: bool = False

    def __post_init__(self) -> None:
        if self.width < 1 or self.rows < 1:
            raise ValueError(f"segment {self.name!r} is empty")
        if self.factors and (self.width != math.prod(self.factors) or self.rows != 1 or not 0.0 < self.norm <= 1.0):
            raise ValueError(f"segment {self.name!r} is an outer product: one row, of its factors' width, with a norm")
        if self.symmetric and (self.factors is None or self.factors[0] != self.factors[1]):
            raise ValueError(f"segment {self.name!r} is no outer product of a vector with itself")
        for rows in self.rows_of:
            if len(set(rows)) != len(rows) or not all(0 <= row < self.rows for row in rows):
                raise ValueError(f"segment {self.name!r} adds a class to rows {rows}, of {self.rows}")


def global_segment(name: str, width: int, classes: int) -> Segment:
    """A segment that all records are added to, whatever their class."""
    return Segment(name, width, 1, ((0,),) * classes)


def class_segment(name: str, width: int, classes: int) -> Segment:
    """A segment with one row per class."""
    return Segment(name, width, classes, tuple((label,) for label in range(classes)))


def product_segment(name: str, left: int, right: int, classes: int, norm: float, *, symmetric: bool = False) -> Segment:
    """The sum over all records of outer products of two vectors, of norm at most `norm` together."""
    return Segment(name, left * right, 1, ((0,),) * classes, (left, right), norm, symmetric)


@dataclass(frozen=True)
class Layout:
    """The segments of one contribution, side by side."""

    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        names = [segment.name for segment in self.segments]
        if not names or len(set(names)) != len(names):  # two of one name would share their rows, beyond norm 1
            raise ValueError(f"the segments of a layout have names of their own, not {names}")
        if len({len(segment.rows_of) for segment in self.segments}) != 1:
            raise ValueError(f"the segments {names} do not agree on the number of classes")
        if sum(factor_bound(segment) ** 4 for segment in self.products) > FIXED_POINT_ONE * FIXED_POINT_ONE:
            raise ValueError(f"the outer products of {names} have a norm above 1 together")

    @property
    def plain(self) -> tuple[Segment, ...]:
        """The segments that a record's contribution holds side by side."""
        return tuple(segment for segment in self.segments if segment.factors is None)

    @property
    def products(self) -> tuple[Segment, ...]:
        """The segments that are outer products."""
        return tuple(segment for segment in self.segments if segment.factors is not None)

    @property
    def plain_clip_norm(self) -> int:
        """The L2 norm, in grid steps, to which the plain segments are clipped: what the outer products leave of 1."""
        return math.isqrt(
            FIXED_POINT_ONE * FIXED_POINT_ONE - sum(factor_bound(segment) ** 4 for segment in self.products)
        )

    @property
    def width(self) -> int:
        """Columns of one record's contribution."""
        return sum(segment.width for segment in self.plain)

    @property
    def coordinates(self) -> int:
        """Numbers in the sum, each of which gets noise."""
        return sum(segment.rows * segment.width for segment in self.segments)

    @property
    def classes(self) -> int:
        """How many classes the layout knows."""
        return len(self.segments[0].rows_of)

    def copies(self) -> NDArray[np.int64]:
        """For every class and segment, how many rows a record is added to."""
        return np.array([[len(s.rows_of[c]) for s in self.plain] for c in range(self.classes)], dtype=np.int64)

    def columns(self) -> list[slice]:
        """Where each plain segment lies in a contribution."""
        stops = np.cumsum([segment.width for segment in self.plain])
        return [slice(int(stop) - s.width, int(stop)) for s, stop in zip(self.plain, stops, strict=True)]


def factor_bound(segment: Segment) -> int:
    """The largest integer norm of either factor of an outer product: its square is at most `norm` in grid steps."""
    return math.isqrt(math.floor(segment.norm * FIXED_POINT_ONE))


def factor_scale(segment: Segment, side: int) -> float:
    """The integer norm that a factor of norm 1 is scaled to: below the bound by what rounding can add.

    The product of both, over `FIXED_POINT_ONE`, is what an outer product of unit vectors weighs in the sum.
    """
    assert segment.factors is not None
    bound = factor_bound(segment)
    return max(bound - 0.5 * math.sqrt(segment.factors[side]) - 1e-6 * bound, 0.0)


def factor_to_grid(rows: NDArray[np.floating], segment: Segment, side: int) -> NDArray[np.float64]:
    """Clip each row to norm 1 and scale it to whole numbers of norm at most `factor_bound`; zero where not finite.

    Rounding is to the nearest number, which can add √D / 2 to a norm, so rows are scaled to that much below the bound.

    >>> square = product_segment("square", 2, 2, classes=1, norm=1.0)
    >>> factor_to_grid(np.array([[3.0, 4.0], [0.3, 0.4], [np.inf, 0.0]]), square, 0).tolist()
    [[614.0, 819.0], [307.0, 409.0], [0.0, 0.0]]
    """
    bound, scale = factor_bound(segment), factor_scale(segment, side)
    values = np.array(rows, dtype=np.float64)
    values[~np.isfinite(values).all(axis=1)] = 0.0
    values /= np.maximum(np.abs(values).max(axis=1, initial=0.0), 1.0)[:, None]  # so that it can be squared
    norms = np.sqrt(np.einsum("ij,ij->i", values, values))
    values *= (scale / np.maximum(norms, 1.0))[:, None]
    np.rint(values, out=values)
    values[~(np.einsum("ij,ij->i", values, values) <= bound * bound)] = 0.0  # exact, and never so
    return values


def clip_to_grid(contributions: NDArray[np.floating], labels: NDArray[np.int64], layout: Layout) -> NDArray[np.int64]:
    """Clip each row and put it on the grid, so that its weighted integer norm is at most `layout.plain_clip_norm`."""
    return _whole_rows(contributions, labels, layout).astype(np.int64)


def _whole_rows(contributions: NDArray[np.floating], labels: NDArray[np.int64], layout: Layout) -> NDArray[np.float64]:
    """The rows of `clip_to_grid`: whole numbers of at most `FIXED_POINT_ONE`, in float64, which holds them exactly."""
    values = np.array(contributions, dtype=np.float64)  # a copy: it is scaled in place
    labels = np.asarray(labels)
    if (labels < 0).any():  # it would be counted as the last class, and added as none
        raise IndexError("a record has a label below 0")
    if values.ndim != 2 or values.shape[1] != layout.width or labels.shape != values.shape[:1]:
        # A narrower row would be spread over several coordinates, and counted in the norm only once.
        raise ValueError(
            f"contributions of shape {values.shape} with labels of shape {labels.shape}; this layout wants one row "
            f"of {layout.width} columns and one label per record"
        )
    copies = layout.copies()[labels]
    with np.errstate(over="ignore", invalid="ignore"):
        for index in np.flatnonzero((copies == 0).any(axis=0)):
            columns = layout.columns()[index]
            values[copies[:, index] == 0, columns] *= 0.0  # added nowhere, so it must not hide the rest from the norm
        norms = np.sqrt(_weighted_squares(values, copies, layout))
        odd = np.flatnonzero(~(norms < 1e150))  # NaN, infinite, or too large to be squared
    values[odd] = _rescaled(values[odd])
    norms[odd] = np.sqrt(_weighted_squares(values[odd], copies[odd], layout))
    clip_norm = layout.plain_clip_norm
    values *= (FIXED_POINT_ONE * _MARGIN / np.maximum(norms * (FIXED_POINT_ONE / max(clip_norm, 1)), 1.0))[:, None]
    grid = np.trunc(values, out=values)
    # Exact: float64 adds integers without error up to 2^53, and a sum that passed 2^53 stays above FIXED_POINT_ONE².
    grid[~(_weighted_squares(grid, copies, layout) <= clip_norm * clip_norm)] = 0.0
    return grid


def _rescaled(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows of the same direction that can be squared, for rows that cannot; zero where any entry is not finite."""
    finite = np.asarray(np.isfinite(rows).all(axis=1))
    rows = np.where(finite[:, None], rows, 0.0)
    return rows / np.maximum(np.abs(rows).max(axis=1, initial=0.0), 1.0)[:, None]


def _weighted_squares(values: NDArray, copies: NDArray[np.int64], layout: Layout) -> NDArray:
    total = np.zeros(len(values), dtype=values.dtype)
    for index, columns in enumerate(layout.columns()):
        part = values[:, columns]
        total += copies[:, index] * np.einsum("ij,ij->i", part, part)
    return total


def _summed_products(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.int64]:
    """The sum over records of left ⊗ right, for whole numbers of which no two multiply to more than 2^20.

    Exact, in whatever order it is added up: float64 holds such sums over 2^33 records. (float32 would over 16.) It is
    left to torch, as the backbone is: NumPy's matrix products have threads of their own, which spin beside torch's.
    """
    import torch  # only here: accounting and aggregation should start without it

    return (torch.from_numpy(left).T @ torch.from_numpy(right)).numpy().astype(np.int64)


class ClippedSum:
    """The running, clean sum of clipped contributions. Its only exit is `dpdd.common.privacy.privatise`.

    It cannot be printed, indexed, copied or pickled, and it is empty after it was privatised once.
    """

    __slots__ = ("_sums", "layout")

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._sums: dict[str, NDArray[np.int64]] | None = {
            segment.name: np.zeros((segment.rows, segment.width), dtype=np.int64) for segment in layout.segments
        }

    def add(
        self,
        contributions: NDArray[np.floating],
        labels: NDArray[np.int64],
        factors: Mapping[str, tuple[NDArray[np.floating], NDArray[np.floating]]] | None = None,
    ) -> None:
        """Clip a batch of contributions (one row per record) and add it, with the `factors` of the outer products."""
        if self._sums is None:
            raise RuntimeError("this sum was privatised already; a new release needs a new sum")
        pairs = self._pairs(factors or {}, len(labels))
        grid = _whole_rows(contributions, labels, self.layout)
        parts = [contributions, *(factor for pair in pairs for factor in pair)]
        odd = ~np.all([np.isfinite(part).all(axis=1) for part in parts], axis=0)
        grid[odd] = 0.0
        for segment, (left, right) in zip(self.layout.products, pairs, strict=True):
            first = factor_to_grid(left, segment, 0)
            first[odd] = 0.0
            second = first if right is left else factor_to_grid(right, segment, 1)
            self._sums[segment.name][0] += _summed_products(first, second).ravel()
        self._add_rows(grid, labels)

    def _add_rows(self, grid: NDArray[np.float64], labels: NDArray[np.int64]) -> None:
        """Add rows of the plain segments, clipped and whole, where those of their class belong."""
        assert self._sums is not None
        present, places = np.unique(labels, return_inverse=True)
        by_class = np.zeros((len(present), self.layout.width))
        for place, row in zip(places, grid, strict=True):
            by_class[place] += row  # exact: float64 holds sums of 2^33 whole numbers of at most 2^20
        for segment, columns in zip(self.layout.plain, self.layout.columns(), strict=True):
            for label, members in zip(present, by_class[:, columns].astype(np.int64), strict=True):
                for number in segment.rows_of[label]:
                    self._sums[segment.name][number] += members

    def _pairs(
        self, factors: Mapping[str, tuple[NDArray[np.floating], NDArray[np.floating]]], count: int
    ) -> list[tuple[NDArray[np.floating], NDArray[np.floating]]]:
        """The factors of each outer product; ValueError, before anything was added, unless they are what is wanted."""
        wanted = {segment.name: [(count, width) for width in segment.factors or ()] for segment in self.layout.products}
        given = {name: [factor.shape for factor in pair] for name, pair in factors.items()}
        if given != wanted:
            raise ValueError(f"this layout wants outer products with factors of shapes {wanted}, not {given}")
        return [factors[segment.name] for segment in self.layout.products]

    def _take(self) -> dict[str, NDArray[np.int64]]:
        if self._sums is None:
            raise RuntimeError("this sum was privatised already; noise is drawn once")
        sums, self._sums = self._sums, None
        return sums

    def __repr__(self) -> str:
        return "ClippedSum(private)"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a clean sum is private and cannot be pickled or copied")
