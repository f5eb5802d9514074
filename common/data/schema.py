"""The public schema of a study's records: what coordinator and silos have to agree on before anybody spends.

>>> DataSchema(classes=("benign", "malignant"), shape=(3, 64, 64), fit="resize").kind
'image'
>>> DataSchema(classes=("home", "ward"), shape=(12,)).is_table
True
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, field_validator

Fit = Literal["exact", "resize", "crop", "pad"]

MAX_SIDE = 4096
"""The largest height, width or table width that may be declared."""

DEFAULT_RANGE = (0.0, 255.0)


class DataSchema(BaseModel):
    """Classes, shape and range of every record, and how images of another size are fitted. Nothing in it is private."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
    def kind(self) -> Literal["image", "table"]:
        """What a record is."""
        return "table" if self.is_table else "image"

    @property
    def is_table(self) -> bool:
        """Whether records are rows of features, not images."""
        return len(self.shape) == 1

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
