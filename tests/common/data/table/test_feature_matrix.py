"""Numbers for classifiers: every code has its own, within [0, 1], and they follow from the schema alone."""

from __future__ import annotations

import datetime

import numpy as np
import pytest

from dpdd.common.data.made_patients import SCHEMA, rows
from dpdd.common.data.table.columns import Categorical, Date, Numeric, Ordinal
from dpdd.common.data.table.feature_matrix import feature_matrix, feature_names
from dpdd.common.data.table.schema import TableSchema

DAY = datetime.date(2020, 1, 1)
ALL_TYPES = TableSchema(
    label="ill",
    columns=(
        Categorical(name="ward", categories=("a", "b", "c"), missing=True),
        Categorical(name="ill", categories=("no", "yes")),
        Ordinal(name="stage", categories=("I", "II", "III")),
        Date(name="seen", first=DAY, last=DAY.replace(month=12), bins=5, missing=True),
        Numeric(name="dose", low=0, high=9, bins=1),
        Categorical(name="only", categories=("x",)),
    ),
)


def test_every_type_of_column() -> None:
    assert feature_names(ALL_TYPES) == (
        *("ward = a", "ward = b", "ward = c", "ward missing"),
        *("stage", "seen", "seen missing", "dose", "only = x"),
    )
    codes = np.array([[0, 0, 0, 0, 0], [2, 2, 4, 0, 0], [3, 1, 5, 0, 0], [1, 1, 3, 0, 0]], np.float32)
    assert feature_matrix(ALL_TYPES, codes).tolist() == [
        [1, 0, 0, 0, 0, 0, 0, 0, 1],
        [0, 0, 1, 0, 1, 1, 0, 0, 1],
        [0, 0, 0, 1, 0.5, 0.5, 1, 0, 1],
        [0, 1, 0, 0, 0.5, 0.75, 0, 0, 1],
    ]


def test_no_row_depends_on_another() -> None:
    test = rows("test")
    whole = feature_matrix(SCHEMA, test.rows)
    assert whole.shape == (4000, len(feature_names(SCHEMA))) and whole.min() == 0 and whole.max() == 1
    for at in (0, 17, 3999):
        assert feature_matrix(SCHEMA, test.rows[at : at + 1])[0].tolist() == whole[at].tolist()
    assert feature_matrix(SCHEMA, test.rows[:0]).shape == (0, whole.shape[1])


@pytest.mark.parametrize("column", ALL_TYPES.features, ids=lambda column: column.name)
def test_codes_of_a_column_differ(column: Categorical) -> None:
    label = Categorical(name="label", categories=("a", "b"))
    schema = TableSchema(label="label", columns=(column, label))
    points = feature_matrix(schema, np.arange(column.size, dtype=np.float32)[:, None])
    assert len({tuple(point) for point in points.tolist()}) == column.size
