"""What is declared about a source of records: where it is, its format, and the public schema of what it holds.

>>> DataSpec(format="npz", path="scans.npz", classes=("benign", "malignant"), shape=(1, 28, 28)).labels_key
'labels'
>>> schema = DataSchema(classes=("benign", "malignant"), shape=(1, 28, 28))
>>> SourceSpec(format="npz", path="scans.npz").read_by(schema).shape
(1, 28, 28)
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import InitErrorDetails

from dpdd.common.data.schema import DEFAULT_RANGE, DataSchema

Format = Literal["image-folder", "idx", "npz", "csv", "parquet", "sql"]

TABLE_FORMATS: tuple[Format, ...] = ("csv", "parquet", "sql")
"""Formats with named columns."""

_BY_SUFFIX: dict[str, Format] = {".npz": "npz", ".csv": "csv", ".parquet": "parquet", "": "image-folder"}


_URL = re.compile(r"[a-z0-9+]+://")
_PASSWORD_IN_URL = re.compile(r"://[^/@]*:[^/@]*@|[?&](password|passwd|pwd)=", re.IGNORECASE)
_FILE_URL = re.compile(r"(sqlite(?:\+[a-z]+)?:///)(?!/)(.+)")


def located_url(url: str, base: Path) -> str:
    """The address of a database; a file of SQLite that is relative to `base` is made absolute.

    >>> located_url("sqlite:///a.db", Path("/data")), located_url("postgresql://user@host/name", Path("/data"))
    ('sqlite:////data/a.db', 'postgresql://user@host/name')
    """
    file = _FILE_URL.fullmatch(url)
    return url if file is None else f"{file.group(1)}{base.absolute() / file.group(2)}"


def with_format(declared: Any) -> Any:
    """A plain path as a table, and a table without a format with the one that its path's ending says.

    What is neither is given back as it is, for a schema to refuse.

    >>> with_format("scans.npz")
    {'format': 'npz', 'path': 'scans.npz'}
    """
    table = {"path": declared} if isinstance(declared, str | Path) else declared
    if isinstance(table, Mapping) and "url" in table:
        return {"format": "sql", **table}
    if not isinstance(table, Mapping) or "format" in table or not isinstance(table.get("path"), str | Path):
        return table
    path = Path(table["path"])
    if "labels" in table:
        return {"format": "idx", **table}
    suffix = ".csv" if path.name.lower().endswith(".csv.gz") else path.suffix.lower()
    if suffix not in _BY_SUFFIX:
        raise ValueError(
            f"the ending of {path.name!r} says no format (.npz, .csv, .parquet, or none for a folder of images): "
            'give a table with path and format, or { path = "images", labels = "labels" } for a pair of IDX files'
        )
    return {"format": _BY_SUFFIX[suffix], **table}


class SourceSpec(BaseModel):
    """Where records are, and how they are stored; what they are is for a `DataSchema` to say."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Format = Field(description="how the records are stored")
    path: Path = Field(
        default=Path(), description="file, or folder for image-folder; relative to the file that declares it"
    )
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
    separator: str = Field(default=",", description="csv of a table: what stands between cells, one ASCII character")
    encoding: str = Field(default="utf-8", description="csv of a table: the encoding of the file's text")
    url: str | None = Field(default=None, description="sql: the database as an SQLAlchemy URL, without a password")
    query: str | None = Field(default=None, min_length=1, description="sql: a SELECT whose result has the columns")
    password_env: str | None = Field(default=None, description="sql: the environment variable with the password")
    password_file: Path | None = Field(default=None, description="sql: the file whose first line is the password")
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
        given: dict[str, Path | None] = {"labels": self.labels, "password_file": self.password_file}
        if self.format != "sql":
            given["path"] = self.path
        paths: dict[str, Any] = {key: base.absolute() / path for key, path in given.items() if path is not None}
        if self.format == "sql" and self.url is not None:
            paths["url"] = located_url(self.url, base)
        return self.model_copy(update=paths)

    def read_by(self, schema: DataSchema) -> DataSpec:
        """This source of records of `schema`. IDX pixels have a range of their own."""
        public = schema.model_dump(exclude={"value_range"} if self.format == "idx" else None)
        return DataSpec.model_validate({**public, **self.model_dump(exclude_unset=True)})

    @model_validator(mode="before")
    @classmethod
    def _has_a_path(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and "path" not in value and value.get("format") != "sql":
            missing = InitErrorDetails(type="missing", loc=("path",), input=dict(value))
            raise ValidationError.from_exception_data(cls.__name__, [missing])
        return value

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        if url is None:
            return None
        if _PASSWORD_IN_URL.search(url):
            raise ValueError("url holds a password: leave it out, and name password_env or password_file")
        if not _URL.match(url):
            raise ValueError("url is no address of a database, such as postgresql://user@host/name or sqlite:///a.db")
        return url

    @field_validator("separator")
    @classmethod
    def _check_separator(cls, separator: str) -> str:
        if len(separator) != 1 or not separator.isascii() or separator.isalnum() or separator in '"\r\n.-+_\0':
            raise ValueError(f"separator is one ASCII character such as ',', ';' or a tab, not {separator!r}")
        return separator

    @field_validator("encoding")
    @classmethod
    def _check_encoding(cls, encoding: str) -> str:
        try:
            "".encode(encoding)
            codecs.getincrementaldecoder(encoding)
        except (LookupError, UnicodeError, ValueError, TypeError):
            raise ValueError(
                f"there is no encoding {encoding[:40]!r}; common ones are utf-8, latin-1, cp1252 and utf-16"
            ) from None
        return encoding

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
        if self.format == "sql":
            for key in ("url", "query"):
                if getattr(self, key) is None:
                    raise ValueError(f"format 'sql' needs {key}")
            if "path" in given:
                raise ValueError("format 'sql' has a url, not a path")
            if self.password_env is not None and self.password_file is not None:
                raise ValueError("password_env and password_file both name a password; leave one out")
        columns = [name for name in (self.label_column, self.image_column, self.group_column) if name is not None]
        twice = next((name for name in columns if columns.count(name) > 1), None)
        if twice is not None:
            kinds = [key for key in ("image_column", "label_column", "group_column") if getattr(self, key) == twice]
            raise ValueError(f"{' and '.join(kinds)} must differ, but both are {twice!r}")
        for fields, formats in (
            (("label_column", "image_column"), ("csv", "parquet")),
            (("group_column",), ("csv", "parquet", "sql")),
            (("url", "query", "password_env", "password_file"), ("sql",)),
            (("separator", "encoding"), ("csv",)),
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
        if self.table is None and {"separator", "encoding"} & self.model_fields_set:
            raise ValueError("separator and encoding are for tables; a CSV file of images has commas and is UTF-8")
        if self.image_column is not None and self.is_table:
            raise ValueError("image_column is for images; a table's shape is one number and it has no such column")
        if self.format == "idx" and self.value_range != DEFAULT_RANGE:
            raise ValueError("value_range is not for format 'idx', whose pixels always run from 0 to 255")
        if self.format == "sql" and self.table is None:
            raise ValueError("format 'sql' is for tables: declare kind = \"table\", label and columns")
        if self.table is not None and self.format not in TABLE_FORMATS:
            raise ValueError(f"format {self.format!r} holds no columns; a table comes as {', '.join(TABLE_FORMATS)}")
        if self.table is not None and "label_column" in self.model_fields_set:
            raise ValueError("label_column is for images; which column of a table is the label, label says")
        if self.is_table and self.fit != "exact":
            raise ValueError("fit is for images; the rows of a table are taken as they are")
        return self
