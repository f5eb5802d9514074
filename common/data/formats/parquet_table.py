"""A Parquet file; rows are counted from 1.

Columns beside the label are numbers (pixels in the order channel, row, column; or the features of a table),
or `image_column` holds encoded images: plain bytes, or the ``{bytes, path}`` structs that Hugging Face
writes. Numbers go, batch by batch, into a temporary file that has one row per record. Images are read row group by row
group, of which the last two are kept, and decoded from there; where row groups are too large for that, the images are
first written anew, with smaller ones, into a temporary file.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from dpdd.common.data.formats import groups, labels, numbers
from dpdd.common.data.formats.columns import Columns, choose, quoted
from dpdd.common.data.formats.encoded_images import EncodedImages
from dpdd.common.data.formats.spec import DataSpec
from dpdd.common.data.labelled_records import LabelledRecords
from dpdd.common.data.row_file import RowFile, RowWriter, room_for_temporary_files, temporary_file
from dpdd.common.errors import DataError
from dpdd.common.files.untrusted import check_growth, reading, require_file, shown

_WHAT = "a Parquet file"
_ROWS = 2048
_LABELS = 1 << 16
_BUFFER = 1 << 16  # bytes for each column
_KEPT = 2

MOST_BYTES = 1 << 25
"""What a row group of encoded images, or a batch of 64-bit numbers, may take in memory."""
MOST_IMAGES = 4096
"""How many images a row group may have: repeated ones are stored once, so its bytes alone say too little."""


def load(spec: DataSpec, base: Path) -> LabelledRecords:
    """Return the records in the Parquet file `spec.path`."""
    path = base / spec.path
    size = require_file(path, _WHAT)
    with reading(path, _WHAT):
        file = pq.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False)
        schema = file.schema_arrow
        columns = choose(schema.names, spec, path)
        _check_types(schema, columns, path)
        # Run-length encoding lets a tiny file claim any number of rows.
        check_growth(path, size, file.metadata.num_rows * math.prod(spec.shape))
        positions = _labels(file, schema.names[columns.label], spec, path)
        members = _groups_of_records(file, columns, path)
        if columns.image is None:
            return LabelledRecords(_numbers(file, columns, spec, path), positions, members)
        images = _ImageColumn(file, schema.names[columns.image], path)
    features = EncodedImages(len(positions), images.fetch, lambda position: f"{path}: row {position + 1}", spec)
    return LabelledRecords(features, positions, members)


def _numbers(file: pq.ParquetFile, columns: Columns, spec: DataSpec, path: Path) -> RowFile:
    """The columns of numbers as features, one row per record."""
    names = [file.schema_arrow.names[at] for at in columns.numbers]
    small = all(types.is_uint8(file.schema_arrow.field(at).type) for at in columns.numbers)
    stored = np.dtype(np.uint8 if small else np.float64)
    writer = RowWriter(spec.shape, numbers.feature_dtype(stored, spec))
    most, row = max(1, min(_ROWS, MOST_BYTES // (8 * len(names)))), 0

    def where(at: int) -> str:
        return f"{shown(path)}: row {row + at + 1}"

    for batch in file.iter_batches(batch_size=most, columns=names):
        cells = np.empty((batch.num_rows, len(names)), stored)
        for at, name in enumerate(names):
            column = batch.column(name)
            _refuse_null(column, name, path, row)
            cells[:, at] = column.to_numpy(zero_copy_only=False)
        writer.append(numbers.to_features(cells, spec, where).reshape(-1, *spec.shape))
        row += batch.num_rows
    _check_rows(row, file, path)
    return writer.finish()


class _ImageColumn:
    """A column of encoded images, read a row group at a time; the last few groups are kept."""

    def __init__(self, file: pq.ParquetFile, name: str, path: Path) -> None:
        self._name, self._path = name, path
        self._file = _with_small_groups(file, name)
        self._starts = np.cumsum([0, *(group.num_rows for group in _groups(self._file))], dtype=np.int64)
        self._kept: OrderedDict[int, pa.Array] = OrderedDict()
        self._lock = threading.Lock()  # a batch may be read ahead while another is asked for
        _check_rows(int(self._starts[-1]), file, path)

    def fetch(self, positions: npt.NDArray[np.int64]) -> list[bytes]:
        """The encoded images at these positions; each row group that they lie in is read once."""
        images = [b""] * len(positions)
        groups = np.searchsorted(self._starts, positions, side="right") - 1
        for group in np.unique(groups).tolist():
            column = self._column(group)
            for place in np.flatnonzero(groups == group).tolist():
                cell = column[int(positions[place] - self._starts[group])].as_py()
                data = cell.get("bytes") if isinstance(cell, dict) else cell
                if not isinstance(data, bytes):
                    row, name = int(positions[place]) + 1, quoted(self._name)
                    raise DataError(f"{shown(self._path)}: row {row} has no image bytes in column {name}")
                images[place] = data
        return images

    def _column(self, group: int) -> pa.Array:
        with self._lock, reading(self._path, _WHAT):
            if group not in self._kept:
                while len(self._kept) >= _KEPT:
                    self._kept.popitem(last=False)
                column = self._file.read_row_group(group, columns=[self._name]).column(0).combine_chunks()
                if len(column) != self._starts[group + 1] - self._starts[group]:
                    raise DataError(f"{shown(self._path)} has a row group that is cut short or damaged")
                self._kept[group] = column
            self._kept.move_to_end(group)
            return self._kept[group]


def _groups(file: pq.ParquetFile) -> list[pq.RowGroupMetaData]:
    return [file.metadata.row_group(at) for at in range(file.metadata.num_row_groups)]


def _with_small_groups(file: pq.ParquetFile, name: str) -> pq.ParquetFile:
    """The file itself, or a copy of the column where some row group has more rows or bytes than can be kept."""
    largest = max((group.total_byte_size / max(1, group.num_rows) for group in _groups(file)), default=0.0)
    rows = max(1, min(MOST_IMAGES, int(MOST_BYTES // max(1.0, largest))))
    if all(group.num_rows <= rows for group in _groups(file)):
        return file
    copy, schema = temporary_file(), pa.schema([file.schema_arrow.field(name)])
    with pq.ParquetWriter(copy, schema, compression="NONE", use_dictionary=False) as writer:
        for batch in file.iter_batches(batch_size=rows, columns=[name]):
            with room_for_temporary_files():
                writer.write_batch(batch)
    return pq.ParquetFile(copy)


def _labels(file: pq.ParquetFile, name: str, spec: DataSpec, path: Path) -> npt.NDArray[np.int64]:
    positions, row = [np.zeros(0, dtype=np.int64)], 0
    for batch in file.iter_batches(batch_size=_LABELS, columns=[name]):
        column = batch.column(0)
        _refuse_null(column, name, path, row)
        if types.is_dictionary(column.type):
            column = column.dictionary_decode()
        values = column.to_pylist() if _is_text(column.type) else column.to_numpy(zero_copy_only=False)
        positions.append(labels.encode(values, spec.classes, path, row + 1))
        row += batch.num_rows
    _check_rows(row, file, path)
    return np.concatenate(positions)


def _groups_of_records(file: pq.ParquetFile, columns: Columns, path: Path) -> npt.NDArray[np.str_] | None:
    if columns.group is None:
        return None
    field = file.schema_arrow.field(columns.group)
    kind = field.type.value_type if types.is_dictionary(field.type) else field.type
    if not (types.is_integer(kind) or _is_text(kind)):
        raise DataError(
            f"{shown(path)}: group column {quoted(field.name)} must be text or integers, not {_named(kind)}"
        )
    return groups.named(file.read(columns=[field.name]).column(field.name).to_pylist(), path)


def _check_rows(rows: int, file: pq.ParquetFile, path: Path) -> None:
    if rows != file.metadata.num_rows:
        raise DataError(f"{shown(path)} announces {file.metadata.num_rows} rows but has {rows}; it is damaged")


def _check_types(schema: pa.Schema, columns: Columns, path: Path) -> None:
    label = schema.field(columns.label)
    kind = label.type.value_type if types.is_dictionary(label.type) else label.type
    if not (types.is_integer(kind) or _is_text(kind) or types.is_boolean(kind)):
        raise DataError(
            f"{shown(path)}: label column {quoted(label.name)} must be text or integers, not {_named(kind)}"
        )
    for position in columns.numbers:
        field = schema.field(position)
        if not (types.is_integer(field.type) or types.is_floating(field.type) or types.is_boolean(field.type)):
            raise DataError(f"{shown(path)}: column {quoted(field.name)} must hold numbers, not {_named(field.type)}")
    if columns.image is not None:
        field = schema.field(columns.image)
        if not (_is_bytes(field.type) or _is_struct_of_bytes(field.type)):
            raise DataError(
                f"{shown(path)}: image column {quoted(field.name)} must hold encoded images, as bytes or as "
                f"{{bytes, path}} structs, not {_named(field.type)}"
            )


def _refuse_null(column: pa.Array | pa.ChunkedArray, name: str, path: Path, first: int) -> None:
    if column.null_count:
        row = first + 1 + column.is_null().index(True).as_py()
        raise DataError(
            f"{shown(path)}: row {row}, column {quoted(name)} is empty; "
            "every record needs a label, and a missing number is written as nan"
        )


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


def _is_struct_of_bytes(kind: pa.DataType) -> bool:
    return bool(types.is_struct(kind)) and any(
        kind.field(at).name == "bytes" and _is_bytes(kind.field(at).type) for at in range(kind.num_fields)
    )


def _named(kind: pa.DataType) -> str:
    return shown(kind, 60)
