"""Arrow columns into codes: the rule of `cells`, cell by cell, at the speed of Arrow.

What is there many times is looked up once, and numbers in text are read by Arrow where they are plain; everything else
goes through the rule itself, so the codes are those of `encoding` for the same cells. Text that is not UTF-8 keeps
what can be read of it. Times with a zone count by their day in UTC; lists, bytes and other nested values are missing.

>>> from dpdd.common.data.table.columns import Numeric
>>> age = Numeric(name="age", low=0, high=100, bins=10, missing=True)
>>> encode_arrow(age, pa.array([" 42", "1_0", "n/a", None])).tolist()
[4, 1, 10, 10]
"""

from __future__ import annotations

import datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from dpdd.common.data.table import cells
from dpdd.common.data.table.columns import Column, Date, Numeric
from dpdd.common.data.table.encoding import Codes, bins_of, encode_column

_PLAIN = r"^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?$"
_LONGEST_PLAIN = 64
LONGEST_BYTES = 4 * cells.LONGEST_CELL
"""More are more characters than a cell may have, text or not: a character has 4 bytes at most."""
_FIRST_DAY = (datetime.date.min - datetime.date(1970, 1, 1)).days


def encode_arrow(column: Column, array: pa.Array) -> Codes:
    """The code of every cell; `cells.DROPPED` where the record is to be dropped."""
    kind = array.type
    if types.is_dictionary(kind):
        return _looked_up(column, array)
    if is_text(kind):
        return _of_text(column, array)
    if types.is_decimal(kind):
        return encode_column(column, array.to_pylist())
    if types.is_integer(kind) or types.is_boolean(kind):
        plain = array.fill_null(False if types.is_boolean(kind) else 0).to_numpy(zero_copy_only=False)
        return encode_column(column, np.ma.MaskedArray(plain, mask=_nulls(array)))
    if types.is_floating(kind) or types.is_date(kind) or types.is_timestamp(kind):
        return encode_column(column, array.to_numpy(zero_copy_only=False))
    return np.full(len(array), cells.absent(column), dtype=np.int32)


def texts_of(array: pa.Array) -> list[str | None]:
    """Every cell as text, whatever it holds; None where there is none."""
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if is_text(array.type):
        return [_readable(value) for value in _without_long(array.cast(pa.large_binary())).to_pylist()]
    if types.is_integer(array.type):
        return [None if value is None else str(value) for value in array.to_pylist()]
    return [None] * len(array)


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds text."""
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _without_long(array: pa.Array) -> pa.Array:
    """The same bytes, with null for what is longer than a cell may be: it is missing, and not copied about."""
    length = pc.binary_length(array)
    if (pc.max(length).as_py() or 0) <= LONGEST_BYTES:
        return array
    return pc.if_else(pc.greater(length, LONGEST_BYTES), None, array)


def _looked_up(column: Column, array: pa.DictionaryArray) -> Codes:
    known = encode_arrow(column, array.dictionary)
    return _taken(column, known, array.indices)


def _taken(column: Column, known: Codes, indices: pa.Array) -> Codes:
    with_absent = np.append(known, np.int32(cells.absent(column)))
    return with_absent[indices.fill_null(len(known)).to_numpy(zero_copy_only=False).astype(np.int64)]


def _of_text(column: Column, array: pa.Array) -> Codes:
    binary = _without_long(array.cast(pa.large_binary() if types.is_large_string(array.type) else pa.binary()))
    if isinstance(column, Numeric):
        return bins_of(column, _numbers(binary))
    if isinstance(column, Date) and (days := _plain_days(binary)) is not None:
        return bins_of(column.days, days)
    distinct = binary.dictionary_encode()
    known = encode_column(column, [_readable(value) for value in distinct.dictionary.to_pylist()])
    return _taken(column, known, distinct.indices)


def _plain_days(binary: pa.Array) -> npt.NDArray[np.float64] | None:
    """Days since 1970-01-01, where every cell is a plain day or empty; None where some is not."""
    try:
        days = pc.cast(_trimmed(binary), pa.date32())
    except pa.ArrowInvalid:
        return None
    numbers = days.view(pa.int32()).to_numpy(zero_copy_only=False).astype(np.float64)
    return None if (numbers < _FIRST_DAY).any() else numbers  # Python's calendar has no year 0


def _trimmed(binary: pa.Array) -> pa.Array:
    """The same as text without spaces around it; null where nothing is left. Nothing is asked of its bytes."""
    text = binary.view(pa.large_string() if types.is_large_binary(binary.type) else pa.string())
    trimmed = pc.ascii_trim_whitespace(text)
    return pc.if_else(pc.equal(trimmed, ""), None, trimmed)


def _numbers(binary: pa.Array) -> npt.NDArray[np.float64]:
    """NaN where there is no number."""
    present, length = _trimmed(binary), pc.binary_length(binary)
    longest = pc.max(length).as_py() or 0
    if longest <= cells.LONGEST_CELL:
        try:
            return _as_floats(present)
        except pa.ArrowInvalid:
            pass
    short = pc.less_equal(length, _LONGEST_PLAIN)
    plain = pc.fill_null(pc.and_(short, pc.match_substring_regex(present, _PLAIN)), False)
    numbers = _as_floats(pc.if_else(plain, present, None))
    odd = pc.and_(pc.invert(plain), present.is_valid())
    distinct = binary.filter(odd).dictionary_encode()
    read = np.array([cells.number(_readable(value)) for value in distinct.dictionary.to_pylist()], dtype=np.float64)
    numbers[odd.to_numpy(zero_copy_only=False)] = read[distinct.indices.to_numpy(zero_copy_only=False)]
    return numbers


def _as_floats(text: pa.Array) -> npt.NDArray[np.float64]:
    return np.array(pc.cast(text, pa.float64()).to_numpy(zero_copy_only=False))


def _readable(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")


def _nulls(array: pa.Array) -> npt.NDArray[np.bool_]:
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False), dtype=np.bool_)
