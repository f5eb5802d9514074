"""From a declared source to labelled records of a table: blocks of raw columns, encoded, in a temporary row file.

Memory holds a block of raw cells, and a label for each record. Every rule on the way touches one record only: what it
is in the end, or that it is left out, depends on no other one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpdd.common.data.features import Features, LazyFeatures
from dpdd.common.data.formats.spec import DataSpec, Format, SourceSpec
from dpdd.common.data.formats.tables import csv_table, parquet_table, sql_query
from dpdd.common.data.formats.tables.block import Block, Intake
from dpdd.common.data.labelled_records import LabelledRecords
from dpdd.common.data.row_file import RowWriter
from dpdd.common.data.table import cells
from dpdd.common.data.table.arrow_cells import encode_arrow, texts_of
from dpdd.common.data.table.columns import Column, Numeric
from dpdd.common.data.table.encoding import Codes, encode_column
from dpdd.common.data.table.schema import TableSchema

Source = Callable[[SourceSpec, Path, Sequence[str], Collection[str]], Iterator[Block]]
"""A reader of blocks of the wanted columns. Some of them are numbers: where they are text, plain ones may be read."""

SOURCES: dict[Format, Source] = {
    "csv": csv_table.blocks,
    "parquet": parquet_table.blocks,
    "sql": sql_query.blocks,
}


def load(spec: DataSpec, base: Path, intake: Intake | None = None) -> LabelledRecords:
    """The records of the table that `spec` declares."""
    schema = spec.table
    assert schema is not None
    noted = intake or Intake()
    wanted = [*schema.names, *([] if spec.group_column is None else [spec.group_column])]
    writer, labels = RowWriter(schema.shape, np.int16), [np.zeros(0, np.int16)]
    groups: list[str] = []
    numbers = {column.name for column in schema.columns if isinstance(column, Numeric)}
    for block in SOURCES[spec.format](spec, base, wanted, numbers):
        codes, kept = encoded(schema, block, noted)
        writer.append(np.ascontiguousarray(np.delete(codes, schema.label_position, axis=0).T))
        labels.append(codes[schema.label_position].copy())
        if spec.group_column is not None:
            groups += _groups(block.columns[-1], kept, noted.kept)
        noted.kept += codes.shape[1]
    return LabelledRecords(
        CodeFeatures(writer.finish()),
        np.concatenate(labels).astype(np.int64),
        np.array(groups, dtype=np.str_) if spec.group_column is not None else None,
    )


def encoded(schema: TableSchema, block: Block, intake: Intake) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.bool_]]:
    """The codes of the records that are kept, a row for each column; and which records those are."""
    kept = np.ones(block.rows, dtype=np.bool_)
    codes = np.empty((len(schema.columns), block.rows), dtype=np.int16)  # there are at most 4097 in a column
    for at, column in enumerate(schema.columns):
        codes[at] = _encoded(column, block.columns[at])
        lacking = kept & (codes[at] == cells.DROPPED)
        if lacking.any():
            intake.dropped[column.name] = intake.dropped.get(column.name, 0) + int(lacking.sum())
            kept &= ~lacking
    intake.unreadable += block.unreadable
    return (codes if kept.all() else codes[:, kept]), kept


class CodeFeatures(LazyFeatures):
    """Codes that stand in a file as small whole numbers, as the floating-point numbers that mechanisms read."""

    def __init__(self, codes: Features) -> None:
        super().__init__(codes.shape, np.float32)
        self._codes = codes

    def rows(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """The codes of these records."""
        return self._codes[positions].astype(np.float32)


def _encoded(column: Column, raw: pa.Array | Sequence[Any]) -> Codes:
    return encode_arrow(column, raw) if isinstance(raw, pa.Array) else encode_column(column, raw)


def _groups(raw: pa.Array | Sequence[Any], kept: npt.NDArray[np.bool_], before: int) -> list[str]:
    """The groups of the records that are kept; one without a group is a group of its own."""
    texts = texts_of(raw) if isinstance(raw, pa.Array) else [cells.category(value) for value in raw]
    named = [text for text, keep in zip(texts, kept.tolist(), strict=True) if keep]
    return [f"record {before + at}" if not text or not text.strip() else text for at, text in enumerate(named)]
