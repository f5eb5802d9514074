"""Cells into codes and back: one record at a time, whatever it holds."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdd.common.data.table import cells
from dpdd.common.data.table.columns import Categorical, Column, Date, Numeric, Ordinal
from dpdd.common.data.table.decoding import decode, decode_column
from dpdd.common.data.table.encoding import encode_block, encode_column
from dpdd.common.data.table.schema import TableSchema

AGE = Numeric(name="age", low=17, high=90, bins=12, integer=True)
DOSE = Numeric(name="dose", low=0.01, high=500, bins=9, scale="log", missing=True)
GAIN = Numeric(name="gain", low=0, high=99999, bins=16, scale="log", integer=True)
TEMPERATURE = Numeric(name="temperature", low=-5.5, high=43.25, bins=7)
VISIT = Date(name="visit", first=datetime.date(1960, 2, 29), last=datetime.date(2024, 12, 31), bins=10, missing=True)
COUNTRY = Categorical(name="country", categories=("A", "B", "rest", "1"), other="rest", missing=True)
PAIN = Ordinal(name="pain", categories=("none", "some", "much"), missing=True)
WARD = Categorical(name="ward", categories=("heart", "lung"))
COLUMNS: tuple[Column, ...] = (AGE, DOSE, GAIN, TEMPERATURE, VISIT, COUNTRY, PAIN, WARD)
SCHEMA = TableSchema(label="ward", columns=COLUMNS)

hostile = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**400, -(10**400), "x" * 10_000, "9" * 5_000, "1_0", "٣", "nan", "-inf", " ", "\0", "1e999"]),
    st.sampled_from(["0000-00-00", "2024-02-30", "12345-01-01", "infinity", "2001-05-17T10:00:00Z", b"bytes", [1], {}]),
    st.sampled_from([decimal.Decimal("sNaN"), decimal.Decimal("1e5000"), 1j, np.datetime64("NaT"), np.float32(1.0)]),
    st.floats(),
    st.text(max_size=8),
    st.dates(),
    st.datetimes(),
    st.sampled_from(["heart", "lung", "A", " B ", "17", "some", "2001-05-17"]),
)
rows = st.lists(st.tuples(*[hostile for _ in COLUMNS]), max_size=8)


def block(records: list[tuple[Any, ...]]) -> dict[str, list[Any]]:
    return {column.name: [record[at] for record in records] for at, column in enumerate(COLUMNS)}


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
@pytest.mark.parametrize("drawn", [True, False])
def test_encoding_what_was_decoded_gives_the_same_codes(column: Column, drawn: bool) -> None:
    codes = np.tile(np.arange(column.size), 200)
    decoded = decode_column(column, codes, np.random.default_rng(0) if drawn else None)
    assert np.array_equal(encode_column(column, decoded), codes)
    as_text = ["" if value is None else str(value) for value in decoded.tolist()]
    assert np.array_equal(encode_column(column, as_text), codes)


def test_decoded_columns_have_their_own_types_and_stay_in_bounds() -> None:
    generator = np.random.default_rng(1)
    codes = np.stack([generator.integers(0, size, 500) for size in SCHEMA.sizes], axis=1)
    table = decode(SCHEMA, codes, np.random.default_rng(2))
    assert [table[column.name].dtype.kind for column in COLUMNS] == ["i", "f", "i", "f", "M", "O", "O", "O"]
    for column in (AGE, DOSE, GAIN, TEMPERATURE):
        assert column.low <= table[column.name].min() and table[column.name].max() <= column.high
    assert set(table["country"].compressed()) == set(COUNTRY.categories)
    assert all(
        table[name].tolist() == again.tolist()
        for name, again in decode(SCHEMA, codes, np.random.default_rng(2)).items()
    )


@given(rows)
@settings(max_examples=150, deadline=None)
def test_whole_columns_follow_the_rule_of_one_cell_and_nothing_raises(records: list[tuple[Any, ...]]) -> None:
    for at, column in enumerate(COLUMNS):
        raw = [record[at] for record in records]
        expected = [cells.code(column, cell) for cell in raw]
        assert encode_column(column, raw).tolist() == expected
        assert all(code == cells.DROPPED or 0 <= code < column.size for code in expected)


@given(rows, st.integers(0, 8), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_neither_blocks_nor_order_nor_other_records_matter(
    records: list[tuple[Any, ...]], cut: int, random: Any
) -> None:
    whole = encode_block(SCHEMA, block(records)).tolist()
    assert whole == [row for record in records for row in encode_block(SCHEMA, block([record])).tolist()]
    assert whole == [
        row for part in (records[:cut], records[cut:]) for row in encode_block(SCHEMA, block(part)).tolist()
    ]
    shuffled = random.sample(records, len(records))
    assert sorted(encode_block(SCHEMA, block(shuffled)).tolist()) == sorted(whole)


@pytest.mark.parametrize(
    ("column", "cell", "code"),
    [
        (AGE, "1e300", AGE.size - 1),
        (AGE, -np.inf, 0),
        (AGE, "old", cells.DROPPED),
        (AGE, np.nan, cells.DROPPED),
        (DOSE, "much", DOSE.values),
        (DOSE, "9" * 5000, DOSE.values),
        (COUNTRY, "Z", 2),
        (COUNTRY, "", 4),
        (COUNTRY, 1.0, 3),
        (PAIN, "severe", 3),
        (WARD, "kidney", cells.DROPPED),
        (WARD, None, cells.DROPPED),
        (VISIT, "9999-12-31", VISIT.values - 1),
        (VISIT, "2024-02-30", VISIT.values),
    ],
)
def test_the_documented_rule(column: Column, cell: Any, code: int) -> None:
    assert cells.code(column, cell) == code


def test_arrays_of_numbers_and_days_follow_the_same_rule() -> None:
    numbers = np.ma.MaskedArray([1, 17, 400], mask=[True, False, False])
    assert encode_column(AGE, numbers).tolist() == [cells.DROPPED, 0, AGE.size - 1]
    assert encode_column(COUNTRY, np.ma.MaskedArray([1, 1, 7], mask=[True, False, False])).tolist() == [4, 3, 2]
    far = np.array(["NaT", "1960-02-29T23:00", "200000-01-01"], dtype="datetime64[s]")
    assert encode_column(VISIT, far).tolist() == [VISIT.values, 0, VISIT.values - 1]
    assert encode_column(AGE, far).tolist() == [cells.DROPPED] * 3


def test_a_zero_of_a_logarithmic_column_has_its_own_bin() -> None:
    assert GAIN.edges[:2].tolist() == [0, 1]
    assert (np.diff(GAIN.edges) >= 1).all() and GAIN.edges[-1] == 100_000


def test_few_integers_have_a_bin_each() -> None:
    assert Numeric(name="children", low=0, high=3, bins=16, integer=True).edges.tolist() == [0, 1, 2, 3, 4]


def test_codes_outside_the_column_are_refused() -> None:
    with pytest.raises(ValueError, match="0 to 1"):
        decode_column(WARD, np.array([2]))
