"""What is declared about a source of records: where it is, its format, and the public schema of what it holds.

>>> DataSpec(format="npz", path="scans.npz", classes=("benign", "malignant"), shape=(1, 28, 28)).labels_key
'labels'
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from dpdd.common.data.schema import DEFAULT_RANGE, DataSchema

Format = Literal["image-folder", "idx", "npz", "csv", "parquet"]


class DataSpec(DataSchema):
    """A source of records and the schema that they are read by: the section `[data]` of `silo.toml`."""

    format: Format = Field(description="how the records are stored")
    path: Path = Field(description="file, or folder for image-folder; relative to the file that declares it")
    labels: Path | None = Field(default=None, description="idx only: the file of labels")
    label_column: str = Field(default="label", min_length=1, description="csv and parquet: the column of labels")
    image_column: str | None = Field(
        default=None,
        min_length=1,
        description="parquet: a column of encoded images; csv: of image files beside the csv; without it "
        "every column but the label is a pixel or a feature",
    )
    images_key: str = Field(default="images", min_length=1, description="npz: the array of images or features")
    labels_key: str = Field(default="labels", min_length=1, description="npz: the array of labels")

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
        if self.format == "idx" and self.value_range != DEFAULT_RANGE:
            raise ValueError("value_range is not for format 'idx', whose pixels always run from 0 to 255")
        if self.is_table and self.fit != "exact":
            raise ValueError("fit is for images; the rows of a table are taken as they are")
        return self
