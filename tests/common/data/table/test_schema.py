"""Schemas of tables from TOML values: what is wrong is named."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from dpdd.common.data.table.schema import table_schema
from dpdd.common.errors import ConfigError

GOOD = """
kind = "table"
label = "ward"
[[columns]]
name = "age"
type = "numeric"
low = 0
high = 100
[[columns]]
name = "visit"
type = "date"
first = 2001-01-01
last = 2024-12-31
missing = true
[[columns]]
name = "ward"
type = "categorical"
categories = ["heart", "lung"]
"""


def test_a_schema_reads_as_it_is_written() -> None:
    schema = table_schema(tomllib.loads(GOOD), "silo.toml")
    assert schema.names == ("age", "visit", "ward")
    assert schema.sizes == (16, 17, 2)
    assert schema.label_column.name == "ward"


def test_a_binned_number_may_be_the_label() -> None:
    assert table_schema({**tomllib.loads(GOOD), "label": "age"}, "silo.toml").label_position == 0


@pytest.mark.parametrize(
    ("at", "change", "message"),
    [
        (0, {"low": 100}, "smaller one first"),
        (0, {"low": float("nan")}, "two numbers within"),
        (0, {"high": float("inf")}, "two numbers within"),
        (0, {"low": 1, "high": 1 + 2e-16}, "too close"),
        (0, {"low": 0.5, "integer": True}, "whole numbers"),
        (0, {"bins": 0}, "bins"),
        (0, {"bin": 3}, "did you mean bins"),
        (0, {"scale": "square"}, "scale"),
        (0, {"type": "number"}, "type"),
        (0, {"name": " age"}, "without spaces"),
        (0, {"name": "ward"}, "there twice"),
        (1, {"last": "2000-01-01"}, "before last"),
        (1, {"last": "soon"}, "last"),
        (2, {"categories": ["heart", "heart"]}, "there twice"),
        (2, {"categories": ["heart"]}, "at least two"),
        (2, {"categories": [""]}, "must be text"),
        (2, {"other": "kidney"}, "one of the categories"),
        (2, {"missing": True}, "cannot be missing"),
    ],
)
def test_what_is_wrong_in_a_column_is_named(at: int, change: dict[str, Any], message: str) -> None:
    value = tomllib.loads(GOOD)
    value["columns"][at].update(change)
    with pytest.raises(ConfigError, match=message) as error:
        table_schema(value, "silo.toml")
    assert "silo.toml: data" in str(error.value)


@pytest.mark.parametrize(("change", "message"), [({"label": "x"}, "name one of"), ({"columns": []}, "at least one")])
def test_what_is_wrong_in_the_table_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        table_schema({**tomllib.loads(GOOD), **change}, "silo.toml")
