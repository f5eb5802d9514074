"""Schemas of tables from TOML values: what is wrong is named."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from dpdd.common.data.table.schema import from_text, table_schema
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


def test_classes_are_the_labels_values_and_the_shape_counts_the_others() -> None:
    schema = table_schema(tomllib.loads(GOOD), "silo.toml")
    assert schema.classes == ("heart", "lung") and schema.shape == (2,)
    assert [column.name for column in schema.features] == ["age", "visit"]


@pytest.mark.parametrize(
    ("column", "first", "last"),
    [
        ({"type": "numeric", "low": 17, "high": 90, "bins": 4, "integer": True}, "17 to 35", "73 to 90"),
        ({"type": "numeric", "low": 0, "high": 3, "bins": 9, "integer": True}, "0", "3"),
        ({"type": "numeric", "low": -5, "high": 2.5, "bins": 3}, "-5 to -2.5", "0 to 2.5"),
        ({"type": "numeric", "low": 0.01, "high": 100, "bins": 4, "scale": "log"}, "0.01 to 0.1", "10 to 100"),
        ({"type": "numeric", "low": 1e9, "high": 1e9 + 1, "bins": 2}, "1000000000 to 1000000000.5", None),
        ({"type": "date", "first": "2001-01-01", "last": "2001-12-31", "bins": 2}, "2001-01-01 to 2001-07-02", None),
    ],
)
def test_bins_of_a_label_are_classes(column: dict[str, Any], first: str, last: str | None) -> None:
    value = tomllib.loads(GOOD)
    value["columns"].append({"name": "y", **column})
    classes = table_schema({**value, "label": "y"}, "silo.toml").classes
    assert classes[0] == first and last in (None, classes[-1]) and len(set(classes)) == len(classes)


def test_a_class_must_be_printable_and_short() -> None:
    for odd in ("a\tb", "x" * 101):
        value = tomllib.loads(GOOD)
        value["columns"][2]["categories"] = ["heart", odd]
        with pytest.raises(ConfigError, match="not printable or longer"):
            table_schema(value, "silo.toml")


def test_a_schema_has_one_text() -> None:
    schema = table_schema(tomllib.loads(GOOD), "silo.toml")
    assert from_text(schema.text) == schema
    for other in (schema.text.replace(",", ", ", 1), "{}", "[]", "null", '{"kind":NaN}', "[" * 100_000, "x"):
        with pytest.raises((ValueError, ConfigError)):
            from_text(other)


def test_a_schema_that_is_too_long_is_refused() -> None:
    value = tomllib.loads(GOOD)
    names = [f"{number:04} {'x' * 600}" for number in range(1000)]
    value["columns"].append({"name": "long", "type": "ordinal", "categories": names})
    with pytest.raises(ConfigError, match="the most"):
        table_schema(value, "silo.toml")
