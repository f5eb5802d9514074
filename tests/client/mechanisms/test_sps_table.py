"""SPS for tables at the silo: a row that is none leaves no trace, and the norm of every other is bounded."""

from __future__ import annotations

import numpy as np
import pytest

from tests.methods.harness import Case, Trial, distances, hostile_rows, same

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
