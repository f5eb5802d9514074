"""Whole columns into codes: the rule of `cells`, cell by cell, at the speed of NumPy.

A raw column is what a source gives: a sequence of text and other Python values, or an array of numbers, truth values or
days, in which a mask, NaN or NaT marks what is missing. Records that the rule drops leave the block; the others
keep their order, and no code depends on another record.

>>> from dpdd.common.data.table.columns import Categorical
>>> encode_column(Categorical(name="sex", categories=("f", "m"), missing=True), ["m", " f", "", "x"]).tolist()
[1, 0, 2, 2]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdd.common.data.table import cells
from dpdd.common.data.table.columns import Column, Date, Numeric
from dpdd.common.data.table.schema import TableSchema

RawColumn = Sequence[Any] | npt.NDArray[Any]
Codes = npt.NDArray[np.int32]
_LONGEST_TABLE = 1 << 17
"""Up to so many whole numbers between the bounds, their codes are looked up."""


def encode_blocks(schema: TableSchema, blocks: Iterable[Mapping[str, RawColumn]]) -> Iterator[Codes]:
    """The codes of every block of raw columns."""
    for block in blocks:
        yield encode_block(schema, block)


def encode_block(schema: TableSchema, block: Mapping[str, RawColumn]) -> Codes:
    """A row of codes for every record that is kept; columns as in the schema."""
    codes = np.stack([encode_column(column, block[column.name]) for column in schema.columns], axis=1)
    return codes[(codes != cells.DROPPED).all(axis=1)]


def encode_column(column: Column, raw: RawColumn) -> Codes:
    """The code of every cell; `cells.DROPPED` where the record is to be dropped."""
    if isinstance(column, Numeric):
        return bins_of(column, _numbers(raw))
    if isinstance(column, Date):
        return bins_of(column.days, _days(raw))
    return _categories(column, raw)


def bins_of(column: Numeric, numbers: npt.NDArray[np.float64]) -> Codes:
    """The bin of every number; NaN is a missing value."""
    if column.integer and column.high - column.low < _LONGEST_TABLE:
        codes = _codes_of_integers(column)
        places = np.clip(numbers, column.low, column.high) - column.low
        return codes[np.where(np.isnan(places), len(codes) - 1, places).astype(np.int64)]
    edges = column.edges
    positions = np.clip(np.searchsorted(edges, numbers, side="right") - 1, 0, len(edges) - 2)
    return np.where(np.isnan(numbers), cells.absent(column), positions).astype(np.int32)


@lru_cache(maxsize=256)
def _codes_of_integers(column: Numeric) -> Codes:
    """The code of every whole number between the bounds, then that of a missing value.

    Bins of integers end at integers, so any other number has the code of the integer below it.
    """
    integers = np.arange(column.low, column.high + 1)
    codes = np.searchsorted(column.edges, integers, side="right") - 1
    return np.append(codes, cells.absent(column)).astype(np.int32)


def _numbers(raw: RawColumn) -> npt.NDArray[np.float64]:
    """NaN where there is no number."""
    if isinstance(raw, np.ndarray) and raw.dtype.kind in "biuf":
        return _unmasked(raw, raw.astype(np.float64))
    if isinstance(raw, np.ndarray) and raw.dtype.kind != "O":
        return np.full(len(raw), np.nan)
    values = _objects(raw)
    try:  # text is read by float() in the rule, too: where none fails and none is too long, this is the same
        if all(type(value) is str and len(value) <= cells.LONGEST_CELL for value in values):
            return np.fromiter(map(float, values), dtype=np.float64, count=len(values))
    except ValueError:
        pass
    return np.fromiter(map(cells.number, values), dtype=np.float64, count=len(values))


def _days(raw: RawColumn) -> npt.NDArray[np.float64]:
    """Days since 1970-01-01; NaN where there is none."""
    if isinstance(raw, np.ndarray) and raw.dtype.kind == "M":
        days = np.ma.getdata(raw).astype("datetime64[D]")
        return _unmasked(raw, np.where(np.isnat(days), np.nan, days.astype(np.int64).astype(np.float64)))
    if isinstance(raw, np.ndarray) and raw.dtype.kind != "O":
        return np.full(len(raw), np.nan)
    values = _objects(raw)
    known: dict[str, float] = {}
    days = np.empty(len(values))
    for at, value in enumerate(values):
        if type(value) is not str or len(value) > cells.LONGEST_CELL:
            days[at] = cells.day(value)
            continue
        if value not in known:
            known[value] = cells.day(value)
        days[at] = known[value]
    return days


def _categories(column: Column, raw: RawColumn) -> Codes:
    if isinstance(raw, np.ndarray) and raw.dtype.kind in "biufM":
        distinct, positions = np.unique(np.ma.getdata(raw), return_inverse=True)
        day = raw.dtype.kind == "M"
        codes = np.array([cells.code(column, _plain(value, day)) for value in distinct], dtype=np.int32)
        found = codes[positions] if len(distinct) else np.zeros(0, dtype=np.int32)
        return np.where(np.ma.getmaskarray(raw), cells.absent(column), found).astype(np.int32)
    if isinstance(raw, np.ndarray) and raw.dtype.kind != "O":
        return np.full(len(raw), cells.absent(column), dtype=np.int32)
    values = _objects(raw)
    listed = {name: at for at, name in enumerate(getattr(column, "categories", ()))}
    codes = np.empty(len(values), dtype=np.int32)
    for at, value in enumerate(values):
        known = listed.get(value) if type(value) is str else None
        codes[at] = cells.code(column, value) if known is None else known
    return codes


def _plain(value: Any, is_day: bool) -> Any:
    """A NumPy number as it is; a day as the text of its date."""
    if not is_day:
        return value
    return None if np.isnat(value) else str(value.astype("datetime64[D]"))


def _objects(raw: RawColumn) -> Sequence[Any]:
    """Python values; None where a mask says so."""
    return raw.tolist() if isinstance(raw, np.ndarray) else raw


def _unmasked(raw: npt.NDArray[Any], numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.where(np.ma.getmaskarray(raw), np.nan, np.ma.getdata(numbers))
