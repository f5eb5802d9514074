"""The public schema of a table: its columns, and which of them is the label.

>>> schema = table_schema({
...     "kind": "table",
...     "label": "ward",
...     "columns": [
...         {"name": "age", "type": "numeric", "low": 0, "high": 100, "bins": 10, "integer": True},
...         {"name": "ward", "type": "categorical", "categories": ["heart", "lung"]},
...     ],
... }, "silo.toml")
>>> schema.sizes, schema.label_position
((10, 2), 1)
>>> schema.classes, schema.shape, from_text(schema.text) == schema
(('heart', 'lung'), (1,), True)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from dpdd.common.config import Settings, validate
from dpdd.common.data.table.columns import Column

MOST_COLUMNS = 4096
MOST_TEXT = 1 << 19
"""Characters of a whole schema as text, which is a part of every request."""
LONGEST_CLASS = 100


TableColumns = tuple[Annotated[Column, Field(discriminator="type")], ...]
"""All columns; the key `type` says of which type each is."""


class TableSchema(Settings):
    """What coordinator and silos agree on before anybody spends: nothing in it is private."""

    kind: Literal["table"] = "table"
    label: str = Field(description="the column that the others are to predict; a record without it is dropped")
    columns: TableColumns = Field(description="all columns, in order")

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        if not 2 <= len(self.columns) <= MOST_COLUMNS:
            raise ValueError(f"columns must list the label and at least one more, at most {MOST_COLUMNS} in all")
        names = [column.name for column in self.columns]
        twice = [name for position, name in enumerate(names) if name in names[:position]]
        if twice:
            raise ValueError(f"columns must have different names, but {twice[0]!r} is there twice")
        if self.label not in names:
            raise ValueError(f"label must name one of the columns, which {self.label!r} does not")
        if self.label_column.missing:
            raise ValueError(f"the label {self.label!r} cannot be missing: leave `missing` out there")
        if self.label_column.values < 2:
            raise ValueError(f"the label {self.label!r} must have at least two classes or bins")
        odd = [name for name in self.classes if len(name) > LONGEST_CLASS or not name.isprintable()]
        if odd:
            raise ValueError(
                f"the label {self.label!r} has the class {odd[0][:40]!r}, which is not printable or longer than "
                f"{LONGEST_CLASS} characters"
            )
        if len(self.text) > MOST_TEXT:
            raise ValueError(f"the columns take {len(self.text)} characters as text; {MOST_TEXT} is the most")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in order."""
        return tuple(column.name for column in self.columns)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many codes each column has."""
        return tuple(column.size for column in self.columns)

    @property
    def label_position(self) -> int:
        """Where the label stands among the columns."""
        return self.names.index(self.label)

    @property
    def label_column(self) -> Column:
        """The column of the label."""
        return self.columns[self.label_position]

    @property
    def features(self) -> tuple[Column, ...]:
        """All columns but the label: what a record has."""
        return tuple(column for column in self.columns if column.name != self.label)

    @property
    def classes(self) -> tuple[str, ...]:
        """The values of the label: categories, levels, or bins."""
        return self.label_column.value_names

    @property
    def shape(self) -> tuple[int]:
        """The shape of a record."""
        return (len(self.columns) - 1,)

    @property
    def text(self) -> str:
        """Canonical JSON with every default written out: one text per schema."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), allow_nan=False)


def table_schema(value: Mapping[str, Any], where: str) -> TableSchema:
    """The section `[data]` of a TOML file as a schema; ConfigError names the first wrong key."""
    return validate(value, TableSchema, f"{where}: data")


def from_text(text: str) -> TableSchema:
    """The schema with this canonical text; ValueError, or ConfigError, for any other text."""
    if len(text) > MOST_TEXT:
        raise ValueError(f"a schema of {len(text)} characters; {MOST_TEXT} is the most")
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("a schema that is nested too deeply") from None
    schema = validate(value, TableSchema, "table")
    if schema.text != text:
        raise ValueError("a schema that is not in canonical form")
    return schema
