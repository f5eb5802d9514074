"""The section `[data]` of a scenario: a benchmark by its name, or the public schema of own data.

`dataset` stands for a benchmark's classes, shape and test data. Otherwise `classes` and `shape` (and `value_range` and
`fit`) say what every record is. Then `test` is public test data, which the coordinator evaluates with, and `source` one
dataset that `dpdd-sim` splits over simulated silos; real silos have their own, and are never told about either. Both
are paths, relative to the scenario's file, or tables with the keys of a silo's `[data]` that say where records are.

>>> data = DataSection(classes=("healthy", "ill"), shape=(1, 28, 28), test="scans/test.npz")
>>> data.test.format, data.declared.kind
('npz', 'image')
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, StrictInt, ValidationError, model_validator

from dpdd.common.config import Settings, explain, validate
from dpdd.common.data import table_benchmarks
from dpdd.common.data.formats.spec import DataSpec, SourceSpec, with_format
from dpdd.common.data.schema import DataSchema, Fit, of_table
from dpdd.common.data.table.schema import TableColumns
from dpdd.common.errors import ConfigError


class PublicSource(SourceSpec):
    """A source that the scenario names; its numbers may have another range than the silos' (say, 8-bit images)."""

    value_range: tuple[float, float] | None = None


Source = Annotated[PublicSource, BeforeValidator(with_format)]
"""Where records are: a path, or a table."""

_SCHEMA = ("kind", "classes", "shape", "value_range", "fit", "label", "columns")
_OWN = (*_SCHEMA, "test", "source", "test_share")


class DataSection(Settings):
    """What the records are, where public ones are, and how a simulation splits its source.

    `test_share` sets a share of the source aside as test data, by the scenario's seed: whole groups, where it has any.
    `partition = "group"` keeps all records of a group in one silo. A Dirichlet partition shares every class out in
    other proportions, or, with `partition_by`, every value of that column of a table.
    """

    dataset: str | None = None
    kind: Literal["image", "table"] | None = None
    label: str | None = None
    columns: TableColumns | None = None
    classes: tuple[str, ...] | None = None
    shape: tuple[StrictInt, ...] | None = None
    value_range: tuple[float, float] | None = None
    fit: Fit | None = None
    test: Source | None = None
    source: Source | None = None
    test_share: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    silos: Annotated[int, Field(ge=1, le=1000)] = 3
    partition: Literal["iid", "dirichlet", "pathological", "group"] = "iid"
    partition_by: str | None = None
    alpha: Annotated[float, Field(gt=0.0, le=1e6)] | None = None
    classes_per_silo: Annotated[int, Field(ge=1)] | None = None
    shares: tuple[Annotated[float, Field(gt=0.0, le=1.0)], ...] | None = None
    records_per_silo: Annotated[int, Field(ge=1)] | None = None

    @property
    def declared(self) -> DataSchema | None:
        """The public schema of own data, or of a table; None for a benchmark of images, which brings its own."""
        if self.dataset in table_benchmarks.names():
            return DataSchema(**of_table(table_benchmarks.schema(self.dataset)))
        if self.dataset is not None:
            return None
        return DataSchema.model_validate({key: value for key in _SCHEMA if (value := getattr(self, key)) is not None})

    @property
    def is_table(self) -> bool:
        """Whether records are rows of a table."""
        declared = self.declared
        return declared is not None and declared.is_table

    @property
    def names_files(self) -> bool:
        """Whether it names files of its own."""
        return self.test is not None or self.source is not None

    def located(self, base: Path) -> DataSection:
        """The same, with paths that are relative to `base` made absolute."""
        sources = {key: source.located(base) for key in ("test", "source") if (source := getattr(self, key))}
        return self.model_copy(update=sources) if sources else self

    def with_source(self, path: Path) -> DataSection:
        """The same with the source at `path`; what a table says of a source of that format stays."""
        try:
            given = with_format(path.absolute())
        except ValueError as error:
            raise ConfigError(f"--source: {error}") from None
        same = self.source is not None and self.source.format == given["format"]
        kept = self.source.model_dump(exclude_unset=True) if self.source is not None and same else {}
        return validate({**self.model_dump(exclude_unset=True), "source": {**kept, **given}}, DataSection, "--source")

    @model_validator(mode="after")
    def _one_kind_of_data(self) -> DataSection:
        given = [key for key in _OWN if getattr(self, key) is not None]
        if self.dataset is not None:
            if given:
                raise ValueError(
                    f"dataset = {self.dataset!r} brings classes, shape, records and test data of its own: "
                    f"leave {given[0]} out, or dataset"
                )
            return self
        if not given:
            raise ValueError(
                'name a benchmark as dataset, or declare own data: classes and shape of images, or kind = "table", '
                "label and columns"
            )
        is_table = self.kind == "table" or self.columns is not None or self.label is not None
        needed = ("label", "columns") if is_table else ("classes", "shape")
        missing = [key for key in needed if getattr(self, key) is None]
        if missing:
            what = 'a table (kind = "table")' if is_table else "own data"
            raise ValueError(f"{what} needs {missing[0]} (or name a benchmark as dataset, and nothing else)")
        try:
            declared = self.declared
        except ValidationError as error:
            raise ValueError(explain(error, DataSchema)) from None
        assert declared is not None
        if declared.is_table and declared.table is None:
            raise ValueError(
                'a table needs kind = "table", label and columns; images have shape = [channels, height, width]'
            )
        if self.test is not None and self.test_share is not None:
            raise ValueError("test is the test data: leave test_share, which sets some of the source aside, out")
        for key in ("test", "source"):
            self._check_source(key, getattr(self, key), declared)
        return self

    @staticmethod
    def _check_source(key: str, source: SourceSpec | None, schema: DataSchema) -> None:
        try:
            if source is not None:
                source.read_by(schema)
        except ValidationError as error:
            raise ValueError(f"{key}: {explain(error, DataSpec)}") from None

    @model_validator(mode="after")
    def _fitting(self) -> DataSection:
        for key, belongs_to in (("alpha", "dirichlet"), ("classes_per_silo", "pathological")):
            given = getattr(self, key) is not None
            if given and self.partition != belongs_to:
                raise ValueError(f'{key} belongs to partition = "{belongs_to}", and the partition is {self.partition}')
            if not given and self.partition == belongs_to:
                raise ValueError(f'partition = "{belongs_to}" needs {key}')
        if self.partition_by is not None:
            self._check_partition_by(self.partition_by)
        if self.shares is not None:
            if self.partition != "iid":
                raise ValueError(f'shares belongs to partition = "iid", and the partition is {self.partition}')
            if len(self.shares) != self.silos:
                raise ValueError(f"shares has {len(self.shares)} numbers for {self.silos} silos")
            if abs(math.fsum(self.shares) - 1.0) > 1e-6:
                raise ValueError(f"shares add up to {math.fsum(self.shares):g}, not to 1")
        if self.partition == "group" and (self.source is None or not self.source.has_groups):
            raise ValueError(
                'partition = "group" needs a source that names groups: a table with groups_key (npz), group_column '
                "(csv, parquet) or group_pattern (image-folder)"
            )
        return self

    def _check_partition_by(self, column: str) -> None:
        if self.partition != "dirichlet":
            raise ValueError(f'partition_by belongs to partition = "dirichlet", and the partition is {self.partition}')
        table = None if self.declared is None else self.declared.table
        if table is None:
            raise ValueError("partition_by names a column of a table, and these records are images")
        if column not in table.names:
            raise ValueError(f"partition_by names a column of the table, which {column!r} is not")
