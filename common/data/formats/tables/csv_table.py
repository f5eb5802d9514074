"""A CSV file: any separator, any encoding, plain or gzipped; a header line, then a record on each line.

A line with another number of cells than the header has is no record, and neither is one that cannot be read by itself
(`csv_lines`). Both are counted, for the operator.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as arrow_csv

from dpdd.common.data.formats.spec import SourceSpec
from dpdd.common.data.formats.tables.block import Block, positions_of
from dpdd.common.data.formats.tables.csv_lines import WHAT, CsvFile, Lines
from dpdd.common.data.table.cells import LONGEST_CELL
from dpdd.common.errors import DataError
from dpdd.common.files.untrusted import require_file, shown

_TEXT = pa.dictionary(pa.int32(), pa.string())


def blocks(
    spec: SourceSpec, base: Path, wanted: Sequence[str], numbers: Collection[str] = frozenset()
) -> Iterator[Block]:
    """The wanted columns of the file as text; as `numbers` where that is asked for and a whole block of them is."""
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
        types = [pa.float64() if name in numbers else _TEXT for name in wanted]
        for lines in file.blocks():
            yield _parsed(lines, len(names), chosen, types, spec.separator)
            whole = [cells for cells in lines.odd if len(cells) == len(names)]
            if lines.odd:
                yield Block([[cells[at] for cells in whole] for at in chosen], len(whole), len(lines.odd) - len(whole))


def header(path: Path, separator: str | None, encoding: str) -> tuple[list[str], str]:
    """The columns' names, and what stands between them: what is given, or what seems to."""
    require_file(path, WHAT)
    with closing(CsvFile(path, separator or ",", encoding)) as file:
        line = file.first_line()
    found = separator or suggested_separator(line) or ","
    return [name.strip() for name in next(csv.reader([line], delimiter=found), [])], found


def _parsed(lines: Lines, width: int, chosen: Sequence[int], types: Sequence[pa.DataType], separator: str) -> Block:
    ragged = 0

    def skip(_row: arrow_csv.InvalidRow) -> str:
        nonlocal ragged
        ragged += 1
        return "skip"

    # A line of empty cells at the end: pyarrow takes a block without any good line for an error. No threads: one that
    # still holds `skip` or the block when the interpreter ends takes the process down, and they save no time here.
    block = lines.plain + separator.encode() * (width - 1) + b"\n"
    keys = [str(position) for position in range(width)]
    for kinds in ([types] if lines.longest <= LONGEST_CELL else []) + [[_TEXT] * len(chosen)]:
        ragged, wanted = 0, [keys[position] for position in chosen]
        try:
            table = arrow_csv.read_csv(
                pa.BufferReader(block),
                read_options=arrow_csv.ReadOptions(column_names=keys, block_size=len(block) + 1, use_threads=False),
                parse_options=arrow_csv.ParseOptions(delimiter=separator, invalid_row_handler=skip),
                convert_options=arrow_csv.ConvertOptions(
                    include_columns=wanted,
                    column_types=dict(zip(wanted, kinds, strict=True)),
                    null_values=[""],
                    strings_can_be_null=False,
                    check_utf8=False,  # it was checked, and what was none was replaced
                ),
            )
            break
        except pa.ArrowInvalid:  # some cell is no number: they are all read as text, and by the rule
            if kinds is not types:
                raise
    rows = table.num_rows - 1
    columns = [pa.concat_arrays(column.chunks).slice(0, rows) for column in table.columns]
    return Block(columns, rows, ragged + lines.unreadable)


def suggested_separator(line: str) -> str | None:
    """The separator that a header line seems to have, if any.

    >>> suggested_separator("age;weight, in kg;sick")
    ';'
    """
    counts = {separator: line.count(separator) for separator in (",", ";", "\t", "|")}
    most = max(counts, key=lambda separator: counts[separator])
    return most if counts[most] else None
