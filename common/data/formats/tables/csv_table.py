"""A CSV file: any separator, any encoding, plain or gzipped; a header line, then a record on each line.

A line with another number of cells than the header has is no record, and neither is one that cannot be read by itself
(`csv_lines`). Both are counted, for the operator.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as arrow_csv

from dpdd.common.data.formats.spec import SourceSpec
from dpdd.common.data.formats.tables.block import Block, positions_of
from dpdd.common.data.formats.tables.csv_lines import LONGEST_LINE, WHAT, CsvFile, Lines
from dpdd.common.errors import DataError
from dpdd.common.files.untrusted import require_file, shown


def blocks(spec: SourceSpec, base: Path, wanted: Sequence[str]) -> Iterator[Block]:
    """The wanted columns of the file, as text."""
    path = base / spec.path
    require_file(path, WHAT)
    with closing(CsvFile(path, spec.separator, spec.encoding)) as file:
        names = file.header()
        meant = suggested_separator(names[0])
        if len(names) == 1 and meant is not None:
            raise DataError(
                f"{shown(path)} has one column only, whose name looks like several; is separator = {json.dumps(meant)}?"
            )
        chosen = positions_of(names, wanted, path)
        for lines in file.blocks():
            yield _parsed(lines, len(names), chosen, spec.separator)


def header(path: Path, separator: str | None, encoding: str) -> tuple[list[str], str]:
    """The columns' names, and what stands between them: what is given, or what seems to."""
    require_file(path, WHAT)
    with closing(CsvFile(path, separator or ",", encoding)) as file:
        line = file.first_line()
    found = separator or suggested_separator(line) or ","
    return [name.strip() for name in next(csv.reader([line], delimiter=found), [])], found


def _parsed(lines: Lines, width: int, chosen: Sequence[int], separator: str) -> Block:
    ragged = [0]

    def skip(_row: arrow_csv.InvalidRow) -> str:
        ragged[0] += 1
        return "skip"

    keys = [str(position) for position in range(width)]
    wanted = [keys[position] for position in chosen]
    # A line of empty cells at the end: pyarrow takes a block without any good line for an error.
    block = lines.plain + separator.encode() * (width - 1) + b"\n"
    table = arrow_csv.read_csv(
        pa.BufferReader(block),
        read_options=arrow_csv.ReadOptions(column_names=keys, block_size=max(len(block) + 1, LONGEST_LINE)),
        parse_options=arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=False, invalid_row_handler=skip),
        convert_options=arrow_csv.ConvertOptions(
            include_columns=wanted,
            column_types=dict.fromkeys(wanted, pa.string()),
            null_values=[],
            strings_can_be_null=False,
            check_utf8=False,  # it was checked, and what was none was replaced
        ),
    )
    rows = table.num_rows - 1
    whole = [cells for cells in lines.odd if len(cells) == width]
    columns = [
        pa.chunked_array([*column.slice(0, rows).chunks, pa.array([cells[at] for cells in whole], pa.string())])
        for at, column in zip(chosen, table.columns, strict=True)
    ]
    dropped = ragged[0] + lines.unreadable + len(lines.odd) - len(whole)
    return Block([column.combine_chunks() for column in columns], rows + len(whole), dropped)


def suggested_separator(line: str) -> str | None:
    """The separator that a header line seems to have, if any.

    >>> suggested_separator("age;weight, in kg;sick")
    ';'
    """
    counts = {separator: line.count(separator) for separator in (",", ";", "\t", "|")}
    most = max(counts, key=lambda separator: counts[separator])
    return most if counts[most] else None
