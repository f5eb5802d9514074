"""Two schemas side by side: the first thing that differs is named, and nothing but public facts is said."""

from __future__ import annotations

from typing import Any

import pytest

from dpdd.common.data.table.differences import differences, first_difference
from dpdd.common.data.table.schema import TableSchema

AGE: dict[str, Any] = {"name": "age", "type": "numeric", "low": 0, "high": 100, "bins": 10}
WARD: dict[str, Any] = {"name": "ward", "type": "categorical", "categories": ["heart", "lung", "skin"]}
DAY: dict[str, Any] = {"name": "day", "type": "date", "first": "2001-01-01", "last": "2024-12-31"}


def schema(*columns: dict[str, Any], label: str = "ward") -> TableSchema:
    return TableSchema.model_validate({"label": label, "columns": columns})


OURS = schema(AGE, DAY, WARD)


@pytest.mark.parametrize(
    ("theirs", "sentence"),
    [
        (schema(AGE, WARD), "columns are 2 (..., 'ward') for east and 3 (..., 'day', 'ward') for us"),
        (schema(DAY, AGE, WARD), "columns are 3 ('day', 'age', 'ward') for east and 3 ('age', 'day', 'ward') for us"),
        (schema(AGE, DAY, WARD, label="age"), "label is 'age' for east and 'ward' for us"),
        (schema({**AGE, "high": 90}, DAY, WARD), "column 'age': high is 90 for east and 100 for us"),
        (schema({**AGE, "bins": 9, "high": 90}, DAY, WARD), "column 'age': bins is 9 for east and 10 for us"),
        (schema({**AGE, "missing": True}, DAY, WARD), "column 'age': missing is true for east and false for us"),
        (
            schema(AGE, {**DAY, "last": "2023-12-31"}, WARD),
            "column 'day': last is 2023-12-31 for east and 2024-12-31 for us",
        ),
        (
            schema({"name": "age", "type": "ordinal", "categories": ["young", "old"]}, DAY, WARD),
            "column 'age': type is ordinal for east and numeric for us",
        ),
        (
            schema(AGE, DAY, {**WARD, "categories": ["heart", "lung", "liver", "skin"]}),
            "column 'ward': categories are 4 (..., 'liver', 'skin') for east and 3 (..., 'skin') for us",
        ),
        (None, "columns are not declared for east and 3 ('age', 'day', 'ward') for us"),
    ],
)
def test_the_first_difference_is_named(theirs: TableSchema | None, sentence: str) -> None:
    assert first_difference(theirs, OURS, "east", "us") == sentence


def test_what_is_the_same_does_not_differ() -> None:
    assert differences(schema({**AGE, "low": 0.0}, DAY, WARD), OURS) == [] == differences(None, None)


def test_long_lists_are_cut() -> None:
    many = schema(AGE, DAY, {**WARD, "categories": [f"ward {n}" for n in range(4000)]})
    assert len(first_difference(many, OURS, "east", "us") or "") < 300
