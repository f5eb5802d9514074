"""SPS for tables at the silo: a row that is none leaves no trace, and the norm of every other is bounded."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from dpdd.common.data.table.columns import Categorical, Numeric, Ordinal
from dpdd.common.data.table.schema import TableSchema
from dpdd.common.methods.sps_table.settings import MethodSettings
from dpdd.common.privacy.clipping import FIXED_POINT_ONE
from tests.methods.harness import CLASSES, TABLE, Case, Trial, distances, hostile_rows, same

CASE = Case.of_table("sps-table", settings={"count_weight": 0.2})


@pytest.mark.parametrize("cell", [0.5, -1.0, 1e9, -0.25, 3e38, np.nan])
def test_a_row_with_a_cell_that_is_no_code_adds_nothing(cell: float) -> None:
    """Not even its count: nobody can be seen by being odd."""
    trial = Trial.of(CASE)
    rows, labels = CASE.records(5)
    odd = rows[:1].copy()
    odd[0, 2] = cell
    with_it = trial.sums(np.concatenate([rows, odd]), np.append(labels, 1), range(6), 0)
    assert same(with_it, trial.sums(rows, labels, range(5), 0))


def test_every_real_row_has_almost_the_stated_sensitivity() -> None:
    """Else there would be more noise than is needed."""
    assert CASE.table is not None
    trial = Trial.of(CASE)
    empty = trial.sums(*CASE.records(0), range(0), 0)
    moved = []
    for row in [*CASE.records(4)[0], *hostile_rows(CASE.table)[:2]]:
        moved += distances(trial.sums(row[None], np.array([1]), [0], 0), empty)
    assert 0.97 < min(moved) <= max(moved) <= 1.0


# A twin by brute force: no product segments, no batches, no torch


def twin(
    table: TableSchema, classes: int, settings: MethodSettings, row: list[float], label: int
) -> dict[str, list[list[int]]]:
    """What one record adds, in grid steps, from the words of docs/sps-table.md alone."""
    d, a2 = len(table.features), settings.count_weight**2
    with_pairs = settings.pairs > 0.0 and d > 1
    pairs = settings.pairs * (1.0 - a2) if with_pairs else 0.0
    values = [column.size for column in table.features]
    groups = [min(column.values, settings.levels) + column.missing for column in table.features]
    columns = [[0] * sum(values) for _ in range(classes)]
    width = sum(groups)
    square = [[0] * width for _ in range(classes * width)]
    count = [[0] for _ in range(classes)]
    if all(0 <= code < size and code == math.floor(code) for code, size in zip(row, values, strict=True)):
        hot, grouped = [], []
        for at, (code, column) in enumerate(zip(row, table.features, strict=True)):
            hot.append(sum(values[:at]) + int(code))
            group = int(code) * min(column.values, settings.levels) // column.values
            grouped.append(sum(groups[:at]) + (groups[at] - 1 if int(code) == column.values else group))
        for cell in hot:
            columns[label][cell] = round(FIXED_POINT_ONE * math.sqrt((1.0 - a2 - pairs) / d))
        count[label][0] = round(FIXED_POINT_ONE * settings.count_weight)
        for one in grouped:
            for other in grouped:
                square[label * width + one][other] = round(FIXED_POINT_ONE * math.sqrt(pairs) / d)
    found = {"columns": columns, "count": count}
    return {**found, "pairs": [[cell for line in square for cell in line]]} if with_pairs else found


def schemas() -> list[TableSchema]:
    label = Categorical(name="kind", categories=CLASSES)
    one = (label, Numeric(name="age", low=0, high=99, bins=10, missing=True))
    single = (label, Categorical(name="always", categories=("the same",)), Ordinal(name="o", categories=("a", "b")))
    return [TABLE, TableSchema(label="kind", columns=one), TableSchema(label="kind", columns=single)]


@pytest.mark.parametrize(
    "settings", [{}, {"pairs": 0.0}, {"pairs": 0.95}, {"levels": 2}, {"count_weight": 0.5}], ids=str
)
@pytest.mark.parametrize("table", schemas(), ids=lambda table: f"{len(table.columns)} columns")
def test_every_record_adds_what_a_twin_says_and_no_more_than_norm_1(
    table: TableSchema, settings: dict[str, float]
) -> None:
    """In whole numbers: records that could be, and those that nobody should have."""
    case = Case("sps-table", settings=settings, shape=table.shape, table=table)
    chosen, trial = case.values(), Trial.of(case)
    assert isinstance(chosen, MethodSettings)
    odd = [*hostile_rows(table), np.full(table.shape, np.nan, np.float32), np.full(table.shape, np.inf, np.float32)]
    last = np.array([column.size - 1 for column in table.features], np.float32)
    for at in range(len(last)):  # a single code that is none
        for code in (last[at] + 1, -1, 0.5, 1e20, -0.001, np.nan):
            row = last.copy()
            row[at] = code
            odd.append(row)
    total: dict[str, NDArray[np.int64]] = {}
    everybody = np.stack([*case.records(12)[0], *odd])
    for number, row in enumerate(everybody):
        label = number % len(CLASSES)
        (added,) = trial.sums(row[None], np.array([label]), [0], 0)
        expected = twin(table, len(CLASSES), chosen, row.tolist(), label)
        assert added.keys() == expected.keys()
        for name, array in added.items():
            wanted = np.array(expected[name])
            assert np.array_equal(array != 0, wanted != 0), f"another cell of {name} than the twin's"
            least = 0.95 * wanted if name == "pairs" else wanted - 3  # factors leave room for what rounding can add
            assert ((least <= array) & (array <= wanted)).all(), "a cell weighs something else"
            assert len(set(array[array != 0].tolist())) <= 1, "cells of one record weigh the same"
            total[name] = total.get(name, 0) + array
        squares = sum(int(cell) ** 2 for array in added.values() for cell in array.ravel().tolist())
        assert squares <= FIXED_POINT_ONE**2, "a record is larger than the sensitivity"
    labels = np.arange(len(everybody)) % len(CLASSES)
    (together,) = trial.sums(everybody, labels, range(len(everybody)), 0)
    assert all(np.array_equal(together[name], total[name]) for name in total), "records are not added up one by one"
