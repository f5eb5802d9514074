"""What a silo's operator declares about the private data: where it is, its form, and the public class list.

>>> DataSpec(format="npz", path="scans.npz", classes=("benign", "malignant"), shape=(1, 28, 28)).labels_key
'labels'
>>> DataSpec(format="csv", path="visits.csv", classes=("home", "ward"), shape=(12,)).is_table
True
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, field_validator, model_validator

Format = Literal["image-folder", "idx", "npz", "csv", "parquet"]

MAX_SIDE = 4096
"""The largest height, width or table width that may be declared."""

_DEFAULT_RANGE = (0.0, 255.0)


class DataSpec(BaseModel):
    """The declared form of one source of private records. Nothing in it is private."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Format = Field(description="how the records are stored")
    path: Path = Field(description="file, or folder for image-folder; relative to the file that declares it")
    labels: Path | None = Field(default=None, description="idx only: the file of labels")
    classes: tuple[str, ...] = Field(
        description="the public class list; a record's label is a name from it or a position in it (where a "
        "name is itself a number, labels are always names)"
    )
    shape: tuple[Annotated[StrictInt, Field(ge=1, le=MAX_SIDE)], ...] = Field(
        description="channels, height and width of every image; or one number, the width of a table"
    )
    label_column: str = Field(default="label", min_length=1, description="csv and parquet: the column of labels")
    image_column: str | None = Field(
        default=None,
        min_length=1,
        description="parquet: a column of encoded images; csv: of image files beside the csv; without it "
        "every column but the label is a pixel or a feature",
    )
    images_key: str = Field(default="images", min_length=1, description="npz: the array of images or features")
    labels_key: str = Field(default="labels", min_length=1, description="npz: the array of labels")
    value_range: tuple[float, float] = Field(
        default=_DEFAULT_RANGE,
        description="numeric pixels: the values that stand for 0 and 1; ignored for tables",
    )

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

    @model_validator(mode="after")
    def _check_together(self) -> DataSpec:
        given = self.model_fields_set
        if self.format == "idx":
            if self.labels is None:
                raise ValueError("format 'idx' needs labels, the path of the IDX file that holds them")
            if self.is_table or self.shape[0] != 1:
                raise ValueError("format 'idx' holds grey images, so shape must be (1, height, width)")
        elif self.labels is not None:
            raise ValueError(f"labels is for format 'idx' only; format {self.format!r} has its labels inside path")
        if self.is_table and self.format == "image-folder":
            raise ValueError("format 'image-folder' holds images, so shape must be (channels, height, width)")
        if self.image_column is not None:
            if self.is_table:
                raise ValueError("image_column is for images; a table's shape is one number and it has no such column")
            if self.image_column == self.label_column:
                raise ValueError(f"image_column and label_column must differ, but both are {self.label_column!r}")
        for fields, formats in (
            (("label_column", "image_column"), ("csv", "parquet")),
            (("images_key", "labels_key"), ("npz",)),
        ):
            wrong = [field for field in fields if field in given and self.format not in formats]
            if wrong:
                raise ValueError(f"{wrong[0]} is for format {' or '.join(map(repr, formats))}, not {self.format!r}")
        encoded = self.format in ("image-folder", "idx") or self.image_column is not None
        if encoded and self.value_range != _DEFAULT_RANGE:
            raise ValueError("value_range is for numeric pixels; IDX and encoded images always run from 0 to 255")
        return self
