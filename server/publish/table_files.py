"""A synthetic table as files that anybody opens: Parquet and CSV with the original columns and types, the schema that
the silos agreed on, and a data dictionary. A number is drawn within its bin by a public seed.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dpdd.common.data.table.columns import Categorical, Column, Date, Numeric
from dpdd.common.data.table.schema import TableSchema
from dpdd.common.data.table.toml import toml_of
from dpdd.common.errors import IntegrityError
from dpdd.common.synthesis.arrow_table import PUBLIC_SEED, arrow_table
from dpdd.common.synthesis.labelled_set import LabelledSet

FOLDER = "table"
PARQUET, CSV, SCHEMA, DICTIONARY = "table.parquet", "table.csv", "schema.toml", "DICTIONARY.md"
_MOST_LISTED = 40


def write_table(folder: Path, dataset: LabelledSet, card: Mapping[str, Any]) -> None:
    """Write all four into the new `folder`."""
    assert dataset.schema is not None
    folder.mkdir()
    table = _columns(dataset)
    pq.write_table(table, folder / PARQUET)
    (folder / CSV).write_bytes(csv_of(table))
    (folder / SCHEMA).write_text(f"[data]\n{toml_of(dataset.schema)}\n")
    (folder / DICTIONARY).write_text(dictionary(dataset.schema, card))


def check_table(folder: Path, dataset: LabelledSet) -> None:
    """IntegrityError unless the files in `folder` hold exactly these records."""
    if not dataset.is_table:
        raise IntegrityError(f"{folder}: the dataset in the card is of images, and has no table; remove this folder")
    table = _columns(dataset)
    for name, same in ((PARQUET, _same_parquet(folder / PARQUET, table)), (CSV, _same_csv(folder / CSV, table))):
        if not same:
            raise IntegrityError(f"{folder / name}: the records are not the ones of the dataset in the card")


def csv_of(table: pa.Table) -> bytes:
    """The same as CSV in UTF-8; a missing value is an empty cell."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.column_names)
    writer.writerows(zip(*(column.to_pylist() for column in table.columns), strict=True))
    return text.getvalue().encode()


def dictionary(schema: TableSchema, card: Mapping[str, Any]) -> str:
    """What each column is, for people."""
    rows = "\n".join(
        f"| `{_cell(column.name)}`{' (label)' if column.name == schema.label else ''} | {_kind(column)} | "
        f"{_cell(_values(column))} | {'yes' if column.missing else 'no'} |"
        for column in schema.columns
    )
    return f"""\
# {card["name"]}: the columns

Synthetic records, of nobody. All of this was declared beforehand and is public; none of it was taken from records.
Numbers and days are drawn within bins (seed {PUBLIC_SEED}), so nothing finer than a bin means anything.

| column | type | values | may be missing |
| --- | --- | --- | --- |
{rows}

A missing value is null in `{PARQUET}`, an empty cell in `{CSV}`. `{SCHEMA}` is the same as silos declare it.
"""


def _columns(dataset: LabelledSet) -> pa.Table:
    """The table's own columns."""
    assert dataset.schema is not None
    return arrow_table(dataset).select(list(dataset.schema.names)).replace_schema_metadata(None)


def _kind(column: Column) -> str:
    if isinstance(column, Numeric):
        return "whole number" if column.integer else "number"
    return "day" if isinstance(column, Date) else column.type


def _values(column: Column) -> str:
    if isinstance(column, Numeric):
        return f"{column.low:.15g} to {column.high:.15g}, {column.values} {column.scale} bins"
    if isinstance(column, Date):
        return f"{column.first} to {column.last}, {column.values} bins"
    names = column.categories
    listed = ", ".join(names[:_MOST_LISTED]) + (f" and {len(names) - _MOST_LISTED} more" if len(names) > 40 else "")
    if isinstance(column, Categorical):
        return listed if column.other is None else f"{listed}; {column.other} stands for all others"
    return f"from {listed}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("`", "'")


def _same_parquet(path: Path, table: pa.Table) -> bool:
    try:
        with pq.ParquetFile(path) as file:
            return file.metadata.num_rows == table.num_rows and bool(file.read().equals(table))
    except (pa.ArrowException, OSError, ValueError):
        return False


def _same_csv(path: Path, table: pa.Table) -> bool:
    try:
        return path.read_bytes() == csv_of(table)
    except OSError:
        return False
