"""A table's schema, proposed from the names and types of its columns; the operator fills in what is public.

What a column may hold is public once it is declared. So nothing here looks at a value, unless the operator asks for
that (`look`): then the proposal is made of exact facts about the records, and says so.
"""

from __future__ import annotations

import datetime
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from dpdd.common.data.formats.tables.block import Block
from dpdd.common.data.table import cells
from dpdd.common.data.table.arrow_cells import is_text
from dpdd.common.data.table.columns import UNKNOWN

MOST_CATEGORIES = 50
_ENOUGH = 0.9
"""Of the values that are there: so many must be numbers, or days, for a column to be proposed as such."""

WIDE: Mapping[str, Mapping[str, Any]] = {
    "numeric": {"low": -1e9, "high": 1e9, "bins": 256, "scale": "symlog", "missing": True},
    "date": {"first": datetime.date(1900, 1, 1), "last": datetime.date(2099, 12, 31), "bins": 200, "missing": True},
    "categorical": {"missing": True},
}
"""What a column may be of which nothing is public but its type."""

_WIDE_NOTE = """\
# A draft for column histograms (docs/tables.md): every silo declares the same one, and so does the scenario. Narrow
# what is public, and list the categories that there may be; all others are counted as "other". For a type that is not
# known yet: numeric with low = -1e9, high = 1e9, bins = 256, scale = "symlog"; date with first = 1900-01-01,
# last = 2099-12-31, bins = 200; categorical with categories and other; each with missing = true, but for the label."""

WARNING = """\
# READ THIS BEFORE YOU PASTE IT. The bounds and categories below were read from your records. Whatever you paste into
# silo.toml becomes PUBLIC: every coordinator sees it, no noise protects it, and no budget counts it. An extreme value
# or a rare category can be a person. Replace bounds by what everybody knows (ages from 0 to 100), and delete categories
# that are rare, or count them into one called "other"."""


def from_types(types: Mapping[str, pa.DataType | None], label: str | None, *, wide: bool = False) -> str:
    """The section `[data]`, as far as names and types go; what is to be filled in is a question mark.

    With `wide` bounds are generous instead: a draft of which column histograms can be asked.
    """
    if not wide:
        columns = "\n\n".join(_column(name, _of_type(kind)) for name, kind in types.items())
        return f'kind = "table"\nlabel = {_text(label or UNKNOWN)}\n\n{columns}'
    columns = "\n\n".join(_column(name, _wide(_of_type(kind), name == label)) for name, kind in types.items())
    return f'{_WIDE_NOTE}\nkind = "table"\nlabel = {_text(label or UNKNOWN)}\n\n{columns}'


def from_values(seen: Mapping[str, Seen], label: str | None) -> str:
    """The same with what the values suggest, under a warning."""
    columns = "\n\n".join(_column(name, _of_values(each)) for name, each in seen.items())
    return f'{WARNING}\nkind = "table"\nlabel = {_text(label or UNKNOWN)}\n\n{columns}'


def _wide(values: dict[str, Any], is_label: bool) -> dict[str, Any]:
    """The same with generous bounds, and room for what is missing or not listed."""
    more = {**WIDE.get(values["type"], {})}
    if is_label:
        more.pop("missing", None)
    if values["type"] == "categorical" and values["categories"] == [UNKNOWN]:
        more |= {"categories": [UNKNOWN, "other"], "other": "other"}
    return {**values, **more}


@dataclass
class Seen:
    """What was seen in a column, in bounded memory. Private."""

    count: int = 0
    missing: int = 0
    numbers: int = 0
    whole: bool = True
    days: int = 0
    low: float = math.inf
    high: float = -math.inf
    first: float = math.inf
    last: float = -math.inf
    texts: Counter[str] = field(default_factory=Counter)
    more: bool = False
    """There were other texts than those that are counted."""

    def add(self, value: Any, times: int) -> None:
        """So many cells with this value."""
        self.count += times
        text = cells.category(value)
        if text is None:
            self.missing += times
            return
        number, day = cells.number(value), cells.day(value)
        if math.isfinite(number):
            self.numbers += times
            self.whole = self.whole and number.is_integer()
            self.low, self.high = min(self.low, number), max(self.high, number)
        if not math.isnan(day):
            self.days += times
            self.first, self.last = min(self.first, day), max(self.last, day)
        if text in self.texts or len(self.texts) <= MOST_CATEGORIES:
            self.texts[text] += times
        else:
            self.more = True


def look(names: Sequence[str], blocks: Iterable[Block]) -> dict[str, Seen]:
    """What the values of every column are."""
    seen = {name: Seen() for name in names}
    for block in blocks:
        for name, column in zip(names, block.columns, strict=True):
            for value, times in _counted(column):
                seen[name].add(value, times)
    return seen


def _counted(column: pa.Array | Sequence[Any]) -> Iterator[tuple[Any, int]]:
    if not isinstance(column, pa.Array):
        yield from Counter(map(_hashable, column)).items()
        return
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if is_text(column.type):
        column = column.cast(pa.large_binary())
    elif pa.types.is_nested(column.type):
        yield None, len(column)
        return
    counts = column.value_counts()
    for value, times in zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True):
        yield (value.decode(errors="replace") if isinstance(value, bytes) else value), times


def _hashable(value: Any) -> Any:
    plain = value is None or isinstance(value, str | int | float | datetime.date)
    return value if plain else str(value)


def _of_type(kind: pa.DataType | None) -> dict[str, Any]:
    types = pa.types
    if kind is not None and types.is_dictionary(kind):
        kind = kind.value_type
    if kind is None:
        return {"type": UNKNOWN}
    if types.is_boolean(kind):
        return {"type": "categorical", "categories": ["false", "true"]}
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        whole = {"integer": True} if types.is_integer(kind) else {}
        return {"type": "numeric", "low": UNKNOWN, "high": UNKNOWN, **whole}
    if types.is_date(kind) or types.is_timestamp(kind):
        return {"type": "date", "first": UNKNOWN, "last": UNKNOWN}
    return {"type": "categorical", "categories": [UNKNOWN]}


def _of_values(seen: Seen) -> dict[str, Any]:
    there = seen.count - seen.missing
    missing = {"missing": True} if seen.missing else {}
    few = not seen.more and len(seen.texts) <= 2
    if there and seen.days >= _ENOUGH * there:
        first, last = (datetime.date(1970, 1, 1) + datetime.timedelta(days=int(day)) for day in (seen.first, seen.last))
        return {"type": "date", "first": first, "last": last, **missing}
    if there and seen.numbers >= _ENOUGH * there and seen.low < seen.high and not few:
        whole = {"integer": True} if seen.whole else {}
        return {"type": "numeric", "low": seen.low, "high": seen.high, **whole, **missing}
    if seen.more or not seen.texts:
        return {"type": UNKNOWN}
    return {"type": "categorical", "categories": sorted(seen.texts), **missing}


def _column(name: str, values: Mapping[str, Any]) -> str:
    lines = ["[[data.columns]]", f"name = {_text(name)}"]
    if values["type"] == UNKNOWN:
        lines.append(
            'type = "?"  # "numeric" with low and high, "date" with first and last, "categorical" or "ordinal" with '
            "categories; or delete this column"
        )
        return "\n".join(lines)
    return "\n".join([*lines, *(f"{key} = {_value(value)}" for key, value in values.items())])


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return value.isoformat() if isinstance(value, datetime.date) else _text(value)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
