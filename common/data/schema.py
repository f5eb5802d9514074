"""The public schema of a study's records: what coordinator and silos have to agree on before anybody spends.

>>> DataSchema(classes=("benign", "malignant"), shape=(3, 64, 64), fit="resize").kind
'image'
>>> DataSchema(classes=("home", "ward"), shape=(12,)).is_table
True
>>> age = {"name": "age", "type": "numeric", "low": 0, "high": 100}
>>> sick = {"name": "sick", "type": "categorical", "categories": ["no", "yes"]}
>>> patients = DataSchema.model_validate({"kind": "table", "label": "sick", "columns": [age, sick]})
>>> patients.classes, patients.shape
(('no', 'yes'), (1,))
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, field_validator, model_validator

from dpdd.common.data.table.schema import TableColumns, TableSchema

Fit = Literal["exact", "resize", "crop", "pad"]

MAX_SIDE = 4096
"""The largest height, width or table width that may be declared."""

DEFAULT_RANGE = (0.0, 255.0)


class DataSchema(BaseModel):
    """Classes, shape and range of every record, and how images of another size are fitted. Nothing in it is private.

    A table declares `kind = "table"`, its `columns`, and which of them is the `label`; classes and shape follow.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["image", "table"] = Field(default="image", description="what a record is")
    label: str | None = Field(default=None, description="tables: the column that the others are to predict")
    columns: TableColumns = Field(default=(), description="tables: all columns, in order")

    classes: tuple[str, ...] = Field(
        description="the public class list; a record's label is a name from it or a position in it (where a "
        "name is itself a number, labels are always names)"
    )
    shape: tuple[Annotated[StrictInt, Field(ge=1, le=MAX_SIDE)], ...] = Field(
        description="channels, height and width of every image; or one number, the width of a table"
    )
    value_range: tuple[float, float] = Field(
        default=DEFAULT_RANGE,
        description="pixels: the values that stand for 0 and 1; 8-bit images need none; ignored for tables",
    )
    fit: Fit = Field(
        default="exact",
        description="images of another size: exact refuses them; resize stretches them; crop scales the shorter side "
        "and cuts the centre out; pad scales the longer side and fills up with zeros",
    )

    @property
    def is_table(self) -> bool:
        """Whether records are rows of features, not images."""
        return len(self.shape) == 1

    @property
    def table(self) -> TableSchema | None:
        """The schema of a table's columns; None for images, and for rows of numbers without one."""
        if self.label is None:
            return None
        return TableSchema(label=self.label, columns=self.columns)

    @model_validator(mode="before")
    @classmethod
    def _of_columns(cls, value: Any) -> Any:
        """What a table's columns say of classes and shape, and what a shape says of the kind."""
        if not isinstance(value, Mapping):
            return value
        shape = value.get("shape")
        if value.get("columns") or value.get("label") or (value.get("kind") == "table" and shape is None):
            declared = {key: value[key] for key in ("kind", "label", "columns") if key in value}
            table = TableSchema.model_validate(declared)
            for key, own in (("classes", table.classes), ("shape", table.shape)):
                if key in value and value[key] != own and value[key] != list(own):
                    raise ValueError(f"{key} follows from a table's columns: leave it out")
            return {**value, "kind": "table", "classes": table.classes, "shape": table.shape}
        one = isinstance(shape, list | tuple) and len(shape) == 1
        return value if "kind" in value or not one else {**value, "kind": "table"}

    @model_validator(mode="after")
    def _check_kind(self) -> DataSchema:
        if (self.kind == "table") != self.is_table:
            other = "image" if self.kind == "table" else "table"
            raise ValueError(
                f"kind = {self.kind!r}, but shape = {list(self.shape)} is that of a record of kind {other!r}"
            )
        return self

    @field_validator("classes")
    @classmethod
    def _check_classes(cls, classes: tuple[str, ...]) -> tuple[str, ...]:
        if len(classes) < 2:
            raise ValueError("classes must name at least two classes")
        twice = [name for position, name in enumerate(classes) if name in classes[:position]]
        if twice:
            raise ValueError(f"classes must be different, but {twice[0]!r} is there twice")
        odd = [name for name in classes if not name.isprintable() or not name or name != name.strip()]
        if odd:
            raise ValueError(f"class {odd[0]!r} must be printable text without spaces at its ends")
        return classes

    @field_validator("shape")
    @classmethod
    def _check_shape(cls, shape: tuple[int, ...]) -> tuple[int, ...]:
        if len(shape) not in (1, 3):
            raise ValueError(
                f"shape must be three numbers (channels, height, width) or one (the width of a table), "
                f"not {len(shape)} numbers"
            )
        if len(shape) == 3 and shape[0] not in (1, 3):
            raise ValueError(f"shape must begin with 1 channel (grey) or 3 (RGB), not {shape[0]}")
        return shape

    @field_validator("value_range")
    @classmethod
    def _check_range(cls, value_range: tuple[float, float]) -> tuple[float, float]:
        low, high = value_range
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError("value_range must be two finite numbers, the smaller one first")
        return value_range


def of_table(table: TableSchema) -> dict[str, Any]:
    """What a `DataSchema` of this table declares."""
    derived = {"classes": table.classes, "shape": table.shape}
    return {"kind": "table", "label": table.label, "columns": table.columns, **derived}
