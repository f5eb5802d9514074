"""Public tables, for simulations and for measuring what a synthetic table is worth: names, schemas, two splits.

`made-patients` is drawn in code. The others are files of the UCI repository, which are looked for on this disk
(`uci_files`) and never downloaded; their schemas are typed in, and known without them.

>>> names()
('adult', 'cervical', 'cervical-risk-factors', 'made-patients')
>>> schema("adult").label, len(schema("adult").features)
('income', 14)
>>> len(load("made-patients", "test"))
4000
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

from dpdd.common.data import adult, cervical, made_patients
from dpdd.common.data.labelled_rows import LabelledRows
from dpdd.common.data.table.encoding import encode_block
from dpdd.common.data.table.rows import rows_and_labels
from dpdd.common.data.table.schema import TableSchema
from dpdd.common.data.uci_files import Cells, UciFile, in_test

Split = Literal["train", "test"]


@dataclass(frozen=True)
class TableBenchmark:
    """A public table: its schema, its rows, and whether they are on this disk."""

    schema: TableSchema
    rows: Callable[[Split], LabelledRows]
    available: Callable[[], bool]


def names() -> tuple[str, ...]:
    """The names that the others know."""
    return tuple(sorted(_TABLES))


def schema(name: str) -> TableSchema:
    """The public schema of one of them."""
    return _TABLES[name].schema


def available(name: str) -> bool:
    """Whether its records are on this disk."""
    return _TABLES[name].available()


def load(name: str, split: Split) -> LabelledRows:
    """One split, as codes; DataError says where to get it from."""
    return _TABLES[name].rows(split)


Columns = Callable[[Sequence[Cells]], Mapping[str, Any]]


def _of_file(file: UciFile, schema: TableSchema, columns: Columns, share: float) -> TableBenchmark:
    @lru_cache(maxsize=2)
    def read(path: Path, split: Split) -> LabelledRows:
        records = [record for record in file.records() if in_test(record, share) == (split == "test")]
        features, labels = rows_and_labels(schema, encode_block(schema, columns(records)))
        return LabelledRows(features, labels, schema)

    return TableBenchmark(schema, lambda split: read(file.path(), split), file.available)


_cervical = partial(_of_file, cervical.FILE, columns=cervical.columns, share=cervical.TEST_SHARE)

_TABLES: dict[str, TableBenchmark] = {
    adult.NAME: _of_file(adult.FILE, adult.SCHEMA, adult.columns, adult.TEST_SHARE),
    cervical.NAME: _cervical(cervical.SCHEMA),
    cervical.WITHOUT_EXAMINATIONS: _cervical(cervical.RISK_FACTORS),
    made_patients.NAME: TableBenchmark(made_patients.SCHEMA, made_patients.rows, lambda: True),
}
