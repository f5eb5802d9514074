"""`three-hospitals`: one table in three hospitals, of which each has it in a form of its own.

North has a CSV file with semicolons in Latin-1, with a column of free text that nobody declares; east has a Parquet
file; south has an SQLite database, and a query that gives its columns the agreed names. The patients are those of
`dpdd.common.data.made_patients`, who never were. Beside the study there is a draft of it: the columns as they would be
declared if nothing about them were public.
"""

from __future__ import annotations

import csv
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dpdd.client.records.proposal import WIDE
from dpdd.common.data.made_patients import SCHEMA, raw
from dpdd.common.data.table.columns import Categorical, Column, Numeric
from dpdd.common.data.table.schema import TableSchema
from dpdd.common.data.table.toml import toml_of

NAME = "three-hospitals"
SUMMARY = "a table of 14 columns in three hospitals: a CSV file, a Parquet file, a database"

Columns = Mapping[str, Sequence[Any]]


def write(folder: Path, share: float = 1.0) -> list[Path]:
    """Write scenario, test data and silos into the existing `folder`; the silos' folders."""
    silos = []
    for position, (silo, form) in enumerate(_FORMS.items()):
        home = folder / silo
        home.mkdir()
        (home / "silo.toml").write_text(_silo_file(silo, form(home, _part(raw("train"), position, len(_FORMS), share))))
        silos.append(home)
    _write_csv(folder / "test.csv", _part(raw("test"), 0, 1, share), ",", "utf-8")
    (folder / "study.toml").write_text(_STUDY.format(name=NAME, summary=SUMMARY, table=toml_of(SCHEMA)))
    (folder / "draft.toml").write_text(_DRAFT.format(table=toml_of(draft_of(SCHEMA))))
    return silos


def draft_of(schema: TableSchema) -> TableSchema:
    """The same columns as somebody declares them who knows no bounds, and not whether the categories are all.

    >>> draft = draft_of(SCHEMA)
    >>> draft.names == SCHEMA.names, draft.columns[0].low, draft.columns[-2].categories
    (True, -1000000000.0, ('no', 'yes', 'other'))
    """
    return TableSchema(label=schema.label, columns=tuple(_wide(each, schema.label) for each in schema.columns))


def _wide(column: Column, label: str) -> Column:
    if isinstance(column, Numeric):
        return Numeric.model_validate({"name": column.name, "integer": column.integer, **WIDE["numeric"]})
    if not isinstance(column, Categorical) or column.name == label:
        return column
    names = (*column.categories, *([] if "other" in column.categories else ["other"]))
    return Categorical(name=column.name, categories=names, other="other", missing=True)


def _part(table: Columns, position: int, of: int, share: float) -> Columns:
    """Every so-manieth record, and of those the first share."""
    taken = {name: column[position::of] for name, column in table.items()}
    return {name: column[: max(1, round(share * len(column)))] for name, column in taken.items()}


def _csv(home: Path, table: Columns) -> str:
    notes = [f'said "{word}"; größer' for word in ("fine", "better", "tired")]
    count = len(next(iter(table.values())))
    _write_csv(home / "patients.csv", {**table, "note": [notes[at % 3] for at in range(count)]}, ";", "latin-1")
    return 'format = "csv"\npath = "patients.csv"\nseparator = ";"\nencoding = "latin-1"'


def _write_csv(path: Path, table: Columns, separator: str, encoding: str) -> None:
    with path.open("w", encoding=encoding, newline="") as file:
        writer = csv.writer(file, delimiter=separator, lineterminator="\n")
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))


def _parquet(home: Path, table: Columns) -> str:
    pq.write_table(pa.table(dict(table)), home / "patients.parquet")
    return 'format = "parquet"\npath = "patients.parquet"'


def _sqlite(home: Path, table: Columns) -> str:
    connection = sqlite3.connect(home / "ward.db")
    theirs = [f"f_{name}" for name in table]
    connection.execute(f"CREATE TABLE stays ({', '.join(theirs)})")
    marks = ", ".join("?" * len(theirs))
    connection.executemany(f"INSERT INTO stays VALUES ({marks})", zip(*table.values(), strict=True))
    connection.commit()
    connection.close()
    named = ", ".join(f"f_{name} AS {name}" for name in table)
    return f'format = "sql"\nurl = "sqlite:///ward.db"\nquery = "SELECT {named} FROM stays"'


_FORMS: Mapping[str, Callable[[Path, Columns], str]] = {"north": _csv, "east": _parquet, "south": _sqlite}

_STUDY = """\
name = "{name}"
summary = "{summary}"

[data]
test = "test.csv"
{table}

[privacy]
epsilon = 1.0
delta = 1e-5

[method]
name = "sps-table"

[synthesis]
rows_per_class = 1000
"""


_DRAFT = """\
name = "hospitals-draft"
summary = "what the columns hold, found out at a price: the patients of test.csv in three simulated hospitals"

[data]
source = "test.csv"
silos = 3
{table}

[privacy]
epsilon = 1.0
delta = 1e-5

[method]
name = "column-histograms"
"""


def _silo_file(silo: str, source: str) -> str:
    return f"""\
name = "{silo}"

[data]
{source}
{toml_of(SCHEMA)}

[budget]
epsilon = 1.0
delta = 2e-5

[policy]
methods = ["sps-table"]
epsilon_per_request = 1.0
approval = "auto"
"""
