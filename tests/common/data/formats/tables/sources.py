"""A table of every type of column, and the same records as a CSV file, a Parquet file or a database."""

from __future__ import annotations

import csv
import io
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpdd.common.data.formats import DataSpec, Intake, load
from dpdd.common.data.table.encoding import encode_block
from dpdd.common.data.table.schema import TableSchema

SCHEMA = TableSchema.model_validate(
    {
        "label": "ward",
        "columns": [
            {"name": "age", "type": "numeric", "low": 0, "high": 100, "bins": 10, "integer": True, "missing": True},
            {"name": "dose", "type": "numeric", "low": 0.01, "high": 50, "bins": 6, "scale": "log", "missing": True},
            {"name": "ward", "type": "categorical", "categories": ["heart", "lung"]},
            {"name": "day", "type": "date", "first": "2001-01-01", "last": "2024-12-31", "missing": True},
            {"name": "code", "type": "categorical", "categories": ["1", "2", 'x, "y"', "rest"], "other": "rest"},
            {"name": "pain", "type": "ordinal", "categories": ["none", "some"], "missing": True},
        ],
    }
)
NAMES = SCHEMA.names
Record = Sequence[Any]
RECORDS: list[Record] = [
    (42, 0.5, "heart", "2010-05-17", "1", "none"),
    (17, 12.25, "lung", "2001-01-01", 'x, "y"', "some"),
    (99, 50, "lung", "2024-12-31", "2", ""),
    ("", "", "heart", "", "other", ""),
    (-5, 1e9, "heart", "1999-01-01", "1", "none"),
]


def spec(form: str, **more: Any) -> DataSpec:
    declared = {"kind": "table", **SCHEMA.model_dump(mode="json")}
    place = {} if form == "sql" else {"path": f"records.{form}"}
    return DataSpec.model_validate({"format": form, **place, **declared, **more})


def codes(base: Path, source: DataSpec, intake: Intake | None = None) -> list[list[int]]:
    """A sorted list of what was read, the label last."""
    read = load(source, base, intake)
    assert read.features.dtype == np.float32 and read.labels.dtype == np.int64
    return sorted(np.column_stack([read.features[:], read.labels]).astype(int).tolist())


def expected(records: Sequence[Record]) -> list[list[int]]:
    """The same by the rule of single records."""
    rows = [encode_block(SCHEMA, {name: [record[at]] for at, name in enumerate(NAMES)}) for record in records]
    at = SCHEMA.label_position
    return sorted([*row[0, :at].tolist(), *row[0, at + 1 :].tolist(), int(row[0, at])] for row in rows if len(row))


def as_csv(records: Sequence[Record], separator: str = ",", names: Sequence[str] = NAMES) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=separator, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(records)
    return text.getvalue()


def write_sqlite(path: Path, records: Sequence[Record]) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(f"CREATE TABLE patients ({', '.join(NAMES)})")
        marks = ", ".join("?" * len(NAMES))
        connection.executemany(f"INSERT INTO patients VALUES ({marks})", records)
    connection.close()
