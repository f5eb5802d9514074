"""What a picture of marginals shows: for every column, shares of its values by class, synthetic beside real.

A panel has a bar for every value. Neighbouring bins share one where there are more than `MOST_BINS`; of categories the
most frequent have one each, and the others one together.

>>> from dpdd.common.data.table.columns import Categorical, Numeric
>>> schema = TableSchema(label="sick", columns=(
...     Numeric(name="age", low=0, high=100, bins=2), Categorical(name="sick", categories=("no", "yes"))))
>>> codes = np.array([[0, 0], [1, 0], [1, 1], [1, 1]])
>>> age, _ = panels(schema, codes, codes)
>>> [(bar.name, bar.synthetic, bar.total) for bar in age.bars], age.distance
([('0 to 50', (0.25, 0.0), 0.25), ('50 to 100', (0.25, 0.5), 0.75)], 0.0)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdd.common.data.table.columns import Column, Date, Numeric, Ordinal
from dpdd.common.data.table.schema import TableSchema

MOST_PANELS, MOST_BINS, MOST_CATEGORIES, MOST_CLASSES = 60, 24, 11, 6
MISSING = "missing"

Codes = NDArray[np.integer[Any]]
Floats = NDArray[np.float64]
Shares = tuple[float, ...]


@dataclass(frozen=True)
class Bar:
    """The share of all rows that has this value, for every class that is shown; real ones where there are any."""

    name: str
    synthetic: Shares
    real: Shares | None = None

    @property
    def total(self) -> float:
        """The larger of both."""
        return max(math.fsum(self.synthetic), math.fsum(self.real or ()))


@dataclass(frozen=True)
class Panel:
    """A column: its bars, whether they stand in an order of their own (numbers, days), and how far both are apart.

    `ends` are the ends of such bars, one more than there are bars for values.
    """

    title: str
    bars: tuple[Bar, ...]
    ends: tuple[str, ...] = ()
    distance: float | None = None


def shown_classes(schema: TableSchema) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The classes that are told apart, and which of them every class is: bins and levels share with neighbours."""
    column, names = schema.label_column, schema.classes
    if len(names) <= MOST_CLASSES:
        return names, np.arange(len(names))
    if isinstance(column, Numeric | Date):
        groups, shown, _ = _bins(column, MOST_CLASSES)
    elif isinstance(column, Ordinal):
        groups = _neighbours(len(names), MOST_CLASSES)
        shown = [f"{names[group[0]]} to {names[group[-1]]}" if len(group) > 1 else names[group[0]] for group in groups]
    else:
        most = MOST_CLASSES - 1
        groups = [*([code] for code in range(most)), list(range(most, len(names)))]
        shown = [*names[:most], f"{len(names) - most} others"]
    return tuple(shown), np.repeat(np.arange(len(groups)), [len(group) for group in groups])


def panels(schema: TableSchema, synthetic: Codes, real: Codes | None) -> list[Panel]:
    """A panel for every column, in the order of the schema; of many, for the first `MOST_PANELS` and the label."""
    shown = [at for at in range(len(schema.columns)) if at < MOST_PANELS or at == schema.label_position]
    return [_panel(schema, at, synthetic, real) for at in shown]


def _panel(schema: TableSchema, at: int, synthetic: Codes, real: Codes | None) -> Panel:
    column = schema.columns[at]
    tables = [_shares(schema, at, codes) for codes in (synthetic, real) if codes is not None]
    distance = None if real is None else float(np.abs(tables[0].sum(axis=1) - tables[1].sum(axis=1)).sum() / 2.0)
    if isinstance(column, Numeric | Date):
        groups, names, ends = _bins(column, MOST_BINS)
        if column.missing:
            groups, names = [*groups, [column.values]], [*names, MISSING]
    else:
        groups, names = _categories(column, tables[-1].sum(axis=1))
        ends = ()
    bars = []
    for group, name in zip(groups, names, strict=True):
        shares = [tuple(table[group].sum(axis=0).tolist()) for table in tables]
        bars.append(Bar(name, *shares))
    return Panel(column.name, tuple(bars), ends, distance)


def _shares(schema: TableSchema, at: int, codes: Codes) -> Floats:
    """Of all rows, by the column's value and the class that is shown (size, classes)."""
    shown, which = shown_classes(schema)
    cells = codes[:, at].astype(np.int64) * len(shown) + which[codes[:, schema.label_position]]
    counts = np.bincount(cells, minlength=schema.sizes[at] * len(shown))
    return counts.reshape(-1, len(shown)) / max(len(codes), 1)


def _neighbours(values: int, most: int) -> list[list[int]]:
    """Codes in at most so many groups of nearly one size."""
    count = min(values, most)
    starts = [at * values // count for at in range(count + 1)]
    return [list(range(low, high)) for low, high in pairwise(starts)]


def _bins(column: Numeric | Date, most: int) -> tuple[list[list[int]], list[str], tuple[str, ...]]:
    """Bins that are shown together, what they are called, and where they end."""
    groups = _neighbours(column.values, most)
    edges = column.edges[[group[0] for group in groups] + [column.values]]
    ends = tuple(map(str, edges.astype("datetime64[D]"))) if isinstance(column, Date) else tuple(map(short, edges))
    names = [
        column.value_names[group[0]] if len(group) == 1 else f"{low} to {high}"
        for group, (low, high) in zip(groups, pairwise(ends), strict=True)
    ]
    return groups, names, ends


def _categories(column: Column, shares: Floats) -> tuple[list[list[int]], list[str]]:
    """The most frequent values first, but for levels, which have an order of their own."""
    named = [*column.value_names, *([MISSING] if column.missing else [])]
    order = np.argsort(-shares, kind="stable").tolist()
    chosen = order if len(order) <= MOST_CATEGORIES else order[: MOST_CATEGORIES - 1]
    rest = sorted(set(order) - set(chosen))
    chosen = sorted(chosen) if isinstance(column, Ordinal) else chosen
    groups = [[code] for code in chosen] + ([rest] if rest else [])
    return groups, [named[code] for code in chosen] + ([f"{len(rest)} others"] if rest else [])


def short(number: float) -> str:
    """A number in few characters.

    >>> [short(each) for each in (0.25, 17.0, 1999.5, 99999.0, 2_000_000.0, -0.00001)]
    ['0.25', '17', '2000', '100k', '2M', '-1e-05']
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size <= abs(number) < 1e13:
            return f"{number / (1e3 if letter == 'k' else size):.3g}{letter}"
    return f"{number:.4g}" if abs(number) >= 1000 else f"{number:.3g}"


def cut_at(bars: Sequence[Bar]) -> float:
    """The share at which an axis ends: where one bar is far longer than all others, it is cut so that these show."""
    totals = sorted((bar.total for bar in bars), reverse=True)
    longest, next_longest = totals[0], totals[1] if len(totals) > 2 else totals[0]
    return 2.0 * next_longest if longest > 4.0 * next_longest > 0.0 else max(longest, 1e-9)
