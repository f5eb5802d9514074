"""What is declared about a source of records: where it is, its format, and the public schema of what it holds.

>>> DataSpec(format="npz", path="scans.npz", classes=("benign", "malignant"), shape=(1, 28, 28)).labels_key
'labels'
>>> schema = DataSchema(classes=("benign", "malignant"), shape=(1, 28, 28))
>>> SourceSpec(format="npz", path="scans.npz").read_by(schema).shape
(1, 28, 28)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from dpdd.common.data.schema import DEFAULT_RANGE, DataSchema

Format = Literal["image-folder", "idx", "npz", "csv", "parquet"]

TABLE_FORMATS: tuple[Format, ...] = ("csv", "parquet")
"""Formats with named columns."""

_BY_SUFFIX: dict[str, Format] = {".npz": "npz", ".csv": "csv", ".parquet": "parquet", "": "image-folder"}


def with_format(declared: Any) -> Any:
    """A plain path as a table, and a table without a format with the one that its path's ending says.

    What is neither is given back as it is, for a schema to refuse.

    >>> with_format("scans.npz")
    {'format': 'npz', 'path': 'scans.npz'}
    """
    table = {"path": declared} if isinstance(declared, str | Path) else declared
    if not isinstance(table, Mapping) or "format" in table or not isinstance(table.get("path"), str | Path):
        return table
    path = Path(table["path"])
    if "labels" in table:
        return {"format": "idx", **table}
    if path.suffix.lower() not in _BY_SUFFIX:
        raise ValueError(
            f"the ending of {path.name!r} says no format (.npz, .csv, .parquet, or none for a folder of images): "
            'give a table with path and format, or { path = "images", labels = "labels" } for a pair of IDX files'
        )
    return {"format": _BY_SUFFIX[path.suffix.lower()], **table}


class SourceSpec(BaseModel):
    """Where records are, and how they are stored; what they are is for a `DataSchema` to say."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
    group_column: str | None = Field(
        default=None,
        min_length=1,
        description="csv and parquet: the column that says which records belong together, say a patient's",
    )
    groups_key: str | None = Field(default=None, min_length=1, description="npz: the array of groups, one per record")
    group_pattern: str | None = Field(
        default=None,
        min_length=1,
        description="image-folder: a regular expression, searched in each file's name; its first group names the "
        "record's group",
    )

    @property
    def has_groups(self) -> bool:
        """Whether it says which records belong together."""
        return any((self.group_column, self.groups_key, self.group_pattern))

    def located(self, base: Path) -> SourceSpec:
        """The same, with paths that are relative to `base` made absolute."""
        paths = {key: base.absolute() / path for key in ("path", "labels") if (path := getattr(self, key)) is not None}
        return self.model_copy(update=paths)

    def read_by(self, schema: DataSchema) -> DataSpec:
        """This source of records of `schema`. IDX pixels have a range of their own."""
        public = schema.model_dump(exclude={"value_range"} if self.format == "idx" else None)
        return DataSpec.model_validate({**public, **self.model_dump(exclude_unset=True)})

    @field_validator("group_pattern")
    @classmethod
    def _check_pattern(cls, pattern: str | None) -> str | None:
        try:
            if pattern is not None and not re.compile(pattern).groups:
                raise ValueError(r"group_pattern must have a group in brackets, as in '^(patient\d+)_'")
        except re.error as error:
            raise ValueError(f"group_pattern is no regular expression: {error}") from None
        return pattern

    @model_validator(mode="after")
    def _check_source(self) -> SourceSpec:
        given = self.model_fields_set
        if self.format == "idx":
            if self.labels is None:
                raise ValueError("format 'idx' needs labels, the path of the IDX file that holds them")
        elif self.labels is not None:
            raise ValueError(f"labels is for format 'idx' only; format {self.format!r} has its labels inside path")
        columns = [name for name in (self.label_column, self.image_column, self.group_column) if name is not None]
        twice = next((name for name in columns if columns.count(name) > 1), None)
        if twice is not None:
            kinds = [key for key in ("image_column", "label_column", "group_column") if getattr(self, key) == twice]
            raise ValueError(f"{' and '.join(kinds)} must differ, but both are {twice!r}")
        for fields, formats in (
            (("label_column", "image_column", "group_column"), ("csv", "parquet")),
            (("images_key", "labels_key", "groups_key"), ("npz",)),
            (("group_pattern",), ("image-folder",)),
        ):
            wrong = [field for field in fields if field in given and self.format not in formats]
            if wrong:
                raise ValueError(f"{wrong[0]} is for format {' or '.join(map(repr, formats))}, not {self.format!r}")
        return self


class DataSpec(DataSchema, SourceSpec):
    """A source of records and the schema that they are read by: the section `[data]` of `silo.toml`."""

    @model_validator(mode="after")
    def _check_together(self) -> DataSpec:
        if self.format == "idx" and (self.is_table or self.shape[0] != 1):
            raise ValueError("format 'idx' holds grey images, so shape must be (1, height, width)")
        if self.is_table and self.format == "image-folder":
            raise ValueError("format 'image-folder' holds images, so shape must be (channels, height, width)")
        if self.image_column is not None and self.is_table:
            raise ValueError("image_column is for images; a table's shape is one number and it has no such column")
        if self.format == "idx" and self.value_range != DEFAULT_RANGE:
            raise ValueError("value_range is not for format 'idx', whose pixels always run from 0 to 255")
        if self.table is not None and self.format not in TABLE_FORMATS:
            raise ValueError(f"format {self.format!r} holds no columns; a table comes as {', '.join(TABLE_FORMATS)}")
        if self.table is not None and "label_column" in self.model_fields_set:
            raise ValueError("label_column is for images; which column of a table is the label, label says")
        if self.is_table and self.fit != "exact":
            raise ValueError("fit is for images; the rows of a table are taken as they are")
        return self
