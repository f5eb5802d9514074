"""A schema as TOML, as it stands in the section `[data]` of a scenario and of `silo.toml`.

>>> from dpdd.common.data.table.columns import Categorical, Numeric
>>> print(toml_of(TableSchema(label="sick", columns=(
...     Numeric(name="age", low=0, high=100, integer=True), Categorical(name="sick", categories=("no", "yes"))))))
kind = "table"
label = "sick"
<BLANKLINE>
[[data.columns]]
name = "age"
type = "numeric"
low = 0.0
high = 100.0
integer = true
<BLANKLINE>
[[data.columns]]
name = "sick"
type = "categorical"
categories = ["no", "yes"]
"""

from __future__ import annotations

import datetime
import json
from typing import Any

from dpdd.common.data.table.columns import Column
from dpdd.common.data.table.schema import TableSchema


def toml_of(schema: TableSchema, section: str = "data") -> str:
    """The lines that declare `schema`: first keys of the section itself, then one table for each column."""
    columns = "\n\n".join(column_toml(column, section) for column in schema.columns)
    return f"{label_toml(schema.label)}\n\n{columns}"


def label_toml(label: str) -> str:
    """The keys of the section itself."""
    return f'kind = "table"\nlabel = {_value(label)}'


def column_toml(column: Column, section: str = "data") -> str:
    """One column; what has its default is left out."""
    values = column.model_dump()
    lines = [f"[[{section}.columns]]", f"name = {_value(column.name)}", f"type = {_value(column.type)}"]
    for key, field in type(column).model_fields.items():
        if key not in ("name", "type") and values[key] != field.get_default():
            lines.append(f"{key} = {_value(values[key])}")
    return "\n".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
