"""How one cell becomes a code. The rule looks at this cell and the public column only, and never fails.

| the cell | is counted as |
| --- | --- |
| empty, spaces, null, NaN, NaT, longer than `LONGEST_CELL` characters | missing |
| a number or a day out of bounds, infinities included | the nearest bound |
| text where a number or a day is due | missing |
| a category outside the list | the column's `other`; without one, missing |
| missing, where `missing` is not allowed (the label always) | the whole record is dropped (`DROPPED`) |

Text is compared without the spaces at its ends. A whole number matches a category that is written like it, as does a
floating-point number without a fraction; truth values are `true` and `false`. A day is ISO text (what follows after the
first ten characters is a time of day, and left out), a date or a timestamp. Lists and other nested values are missing.

>>> from dpdd.common.data.table.columns import Numeric
>>> age = Numeric(name="age", low=0, high=100, bins=10, missing=True)
>>> [code(age, cell) for cell in (" 42 ", 1e300, "-inf", "n/a", None)]
[4, 9, 0, 10, 10]
"""

from __future__ import annotations

import datetime
import decimal
import math
import re
from typing import Any

import numpy as np

from dpdd.common.data.table.columns import Categorical, Column, Date, Numeric

DROPPED = -1
"""The code that drops the record."""
LONGEST_CELL = 4096
"""Cells with more characters count as missing, whatever they hold."""
_DAY = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})(?:[T ].*)?", re.DOTALL)
_EPOCH = datetime.date(1970, 1, 1).toordinal()


def code(column: Column, cell: Any) -> int:
    """The code of one cell, or `DROPPED`."""
    if isinstance(column, Numeric):
        return bin_of(column, number(cell))
    if isinstance(column, Date):
        return bin_of(column.days, day(cell))
    text = category(cell)
    if text is None:
        return absent(column)
    return column.categories.index(text) if text in column.categories else unseen(column)


def absent(column: Column) -> int:
    """The code of a cell without a value."""
    return column.values if column.missing else DROPPED


def unseen(column: Column) -> int:
    """The code of a category that is not in the list."""
    if isinstance(column, Categorical) and column.other is not None:
        return column.categories.index(column.other)
    return absent(column)


def bin_of(column: Numeric, value: float) -> int:
    """The bin of a number; NaN is a missing value."""
    if math.isnan(value):
        return absent(column)
    edges = column.edges
    return int(np.clip(np.searchsorted(edges, value, side="right") - 1, 0, len(edges) - 2))


def number(cell: Any) -> float:
    """A cell as a number; NaN is a missing value."""
    if isinstance(cell, str) and len(cell) > LONGEST_CELL:
        return math.nan
    if isinstance(cell, int | np.integer) and abs(int(cell)) >= 1 << 1000:
        return math.inf if cell > 0 else -math.inf
    if not isinstance(cell, str | int | float | decimal.Decimal | np.number | np.bool_):
        return math.nan
    try:
        return float(cell)
    except (ValueError, OverflowError, TypeError):  # text, Decimal("sNaN"), complex numbers
        return math.nan


def day(cell: Any) -> float:
    """A cell as days since 1970-01-01; NaN is a missing value."""
    if isinstance(cell, datetime.date):  # a datetime is one as well
        return float(cell.toordinal() - _EPOCH)
    if isinstance(cell, np.datetime64):
        return math.nan if np.isnat(cell) else float(cell.astype("datetime64[D]").astype(np.int64))
    if not isinstance(cell, str) or len(cell) > LONGEST_CELL:
        return math.nan
    match = _DAY.fullmatch(cell.strip())
    try:
        return math.nan if match is None else float(datetime.date(*map(int, match.groups())).toordinal() - _EPOCH)
    except ValueError:
        return math.nan


def category(cell: Any) -> str | None:
    """A cell as the text of a category; None is a missing value."""
    if isinstance(cell, bool | np.bool_):
        return "true" if cell else "false"
    if isinstance(cell, float | np.floating | decimal.Decimal):
        value = number(cell)
        if math.isnan(value):
            return None
        return str(int(value)) if math.isfinite(value) and value.is_integer() else str(cell)[:LONGEST_CELL]
    if isinstance(cell, int | np.integer):
        return str(int(cell)) if abs(int(cell)) < 1 << 1000 else "a number without end"
    if isinstance(cell, datetime.datetime):
        return cell.date().isoformat()
    if isinstance(cell, datetime.date):
        return cell.isoformat()
    if not isinstance(cell, str) or len(cell) > LONGEST_CELL:
        return None
    return cell.strip() or None
