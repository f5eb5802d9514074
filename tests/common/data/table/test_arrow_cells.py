"""Arrow columns get the codes that the rule of one cell gives."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdd.common.data.table import cells
from dpdd.common.data.table.arrow_cells import encode_arrow
from dpdd.common.data.table.columns import Categorical, Column, Date, Numeric, Ordinal

COLUMNS: tuple[Column, ...] = (
    Numeric(name="age", low=17, high=90, bins=12, integer=True),
    Numeric(name="dose", low=0.01, high=500, bins=9, scale="log", missing=True),
    Date(name="visit", first=datetime.date(1960, 2, 29), last=datetime.date(2024, 12, 31), bins=10, missing=True),
    Categorical(name="country", categories=("A", "B", "rest", "1", "true", "2001-05-17"), other="rest", missing=True),
    Ordinal(name="pain", categories=("none", "some", "much"), missing=True),
    Categorical(name="ward", categories=("heart", "42")),
)
texts = st.one_of(
    st.none(),
    st.text(max_size=6),
    st.floats().map(str),
    st.integers().map(str),
    st.sampled_from(
        ["1_0", "٣", "nan", "-inf", " ", "\0", "1e999", "+5", "5.", ".5", "0x10", "infinit", "NaN(abc)", "1,5"]
    ),
    st.sampled_from(
        ["x" * 5000, "9" * 5000, "7" * 100, " 42 ", "\t42", "\x1c42", "\xa042", "1e400", "-1e-400", "A", " B "]
    ),
    st.sampled_from(["heart", "2001-05-17", "2001-05-17T10:00:00Z", "0000-05-17", "some", "true", ""]),
)


def check(column: Column, array: pa.Array, values: list[Any]) -> None:
    assert encode_arrow(column, array).tolist() == [cells.code(column, value) for value in values]


@given(st.lists(texts, max_size=20), st.sampled_from(COLUMNS))
@settings(max_examples=300, deadline=None)
def test_text_of_every_kind(values: list[str | None], column: Column) -> None:
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        check(column, pa.array(values, kind), values)
    check(column, pa.array(values, pa.string()).dictionary_encode(), values)
    check(column, pa.array([None, *values, "x"], pa.string()).slice(1, len(values)), values)


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [42, None, -(2**63), 2**63 - 1, 1]),
        (pa.uint8(), [42, None, 255]),
        (pa.uint64(), [2**64 - 1, 42]),
        (pa.float64(), [42.0, None, float("nan"), float("inf"), -1e300, 1.5]),
        (pa.float32(), [42.0, None, 1.5]),
        (pa.bool_(), [True, None, False]),
        (pa.date32(), [datetime.date(2001, 5, 17), None, datetime.date(9999, 12, 31)]),
        (pa.date64(), [datetime.date(2001, 5, 17), None]),
        (pa.timestamp("us"), [datetime.datetime(2001, 5, 17, 23, 59), None, datetime.datetime(1, 1, 1)]),
        (pa.null(), [None, None]),
        (pa.list_(pa.int64()), [[1], None]),
        (pa.binary(), [b"heart", None]),
        (pa.struct({"a": pa.int64()}), [{"a": 1}]),
        (pa.time32("s"), [datetime.time(1), None]),
        (pa.int64(), []),
    ],
    ids=str,
)
def test_arrays_of_other_types(column: Column, kind: pa.DataType, values: list[Any]) -> None:
    array = pa.array(values, kind)
    if pa.types.is_timestamp(kind):
        values = [value and value.date() for value in values]
    check(column, array, values)


def test_decimals_and_times_with_a_zone() -> None:
    age, dose, visit = COLUMNS[:3]
    decimals = pa.array(["42.00", None, "1e6"], pa.string()).cast(pa.decimal128(20, 2))
    check(age, decimals, decimals.to_pylist())
    check(dose, decimals, decimals.to_pylist())
    late = pa.array([990_143_999], pa.timestamp("s", tz="Europe/Berlin"))  # 2001-05-17 in UTC, the 18th in Berlin
    assert encode_arrow(visit, late).tolist() == [cells.code(visit, "2001-05-17")]


def test_far_days_and_bytes_that_are_no_text() -> None:
    visit, country = COLUMNS[2], COLUMNS[3]
    far = pa.array([2**31 - 1, -(2**31), None], pa.int32()).view(pa.date32())
    assert encode_arrow(visit, far).tolist() == [visit.values - 1, 0, visit.values]
    broken = pa.array([b"A", b"\xff\xfe", b"1", b"4\xe2"], pa.binary()).view(pa.string())
    assert encode_arrow(country, broken).tolist() == [0, 2, 3, 2]
    assert encode_arrow(COLUMNS[0], broken).tolist() == [cells.DROPPED, cells.DROPPED, 0, cells.DROPPED]
    assert np.array_equal(encode_arrow(COLUMNS[1], broken) == COLUMNS[1].values, [True, True, False, True])
