"""A Parquet file, read some thousand rows at a time, and only the columns that are asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dpdd.common.data.formats.spec import SourceSpec
from dpdd.common.data.formats.tables.block import Block, positions_of
from dpdd.common.data.table.arrow_cells import is_text
from dpdd.common.files.untrusted import check_growth, reading, require_file

WHAT = "a Parquet file"
ROWS = 1 << 16
_BUFFER = 1 << 20


def blocks(
    spec: SourceSpec, base: Path, wanted: Sequence[str], numbers: Collection[str] = frozenset()
) -> Iterator[Block]:
    """The wanted columns of the file, in their own types."""
    path = base / spec.path
    size = require_file(path, WHAT)
    with reading(path, WHAT):
        schema = pq.read_schema(path)
        positions_of(schema.names, wanted, path)
        repeated = [name for name in wanted if name not in numbers and is_text(schema.field(name).type)]
    options = {"buffer_size": _BUFFER, "pre_buffer": False, "read_dictionary": repeated}
    with reading(path, WHAT), pq.ParquetFile(path, **options) as file:
        check_growth(path, size, file.metadata.num_rows)  # run-length encoding lets a tiny file claim any number
        for batch in file.iter_batches(batch_size=ROWS, columns=list(wanted)):
            columns = [batch.column(name) for name in wanted]
            if not all(map(_in_dictionary, columns)):
                raise ValueError("a cell points outside of its dictionary")
            yield Block(columns, batch.num_rows)


def _in_dictionary(array: pa.Array) -> bool:
    """Whether all cells are in the array's dictionary, if it has one: a damaged file is read without that check."""
    if not isinstance(array, pa.DictionaryArray):
        return True
    ends = pc.min_max(array.indices)
    low, high = ends["min"].as_py(), ends["max"].as_py()
    return low is None or (low >= 0 and high < len(array.dictionary))
