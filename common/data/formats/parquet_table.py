"""A Parquet file; rows are counted from 1.

Columns beside the label are numbers (pixels in the order channel, row, column; or the features of a table),
or `image_column` holds encoded images: plain bytes, or the ``{bytes, path}`` structs that Hugging Face
writes. Labels are read when the file is opened, the rest row group by row group, of which the last two are kept. A file
with row groups that are too large for that is written anew, with smaller ones, into a temporary file.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from dpdd.common.data.features import LazyFeatures
from dpdd.common.data.formats import groups, labels, numbers
from dpdd.common.data.formats.columns import Columns, choose, quoted
from dpdd.common.data.formats.encoded_images import EncodedImages
from dpdd.common.data.formats.spec import DataSpec
from dpdd.common.data.labelled_records import LabelledRecords
from dpdd.common.data.row_file import room_for_temporary_files, temporary_file
from dpdd.common.errors import DataError
from dpdd.common.files.untrusted import check_growth, reading, require_file, shown

_WHAT = "a Parquet file"
_LABELS_AT_ONCE = 1 << 16
_BUFFER = 1 << 20
_KEPT = 2
_MOST_IMAGES = 4096

MOST_BYTES = 1 << 25
"""What a row group may take in memory, in 64-bit numbers or encoded images."""


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
        read = columns.numbers if columns.image is None else (columns.image,)
        row_groups = _RowGroups(file, [schema.names[position] for position in read], spec, path)
    if columns.image is None:
        dtype = np.uint8 if all(types.is_uint8(schema.field(at).type) for at in read) else np.float64
        return LabelledRecords(_Numbers(len(positions), row_groups, dtype, spec, path), positions, members)

    def fetch(chosen: npt.NDArray[np.int64]) -> list[bytes]:
        return _images(row_groups, chosen, str(spec.image_column), path)

    images = EncodedImages(len(positions), fetch, lambda position: f"{path}: row {position + 1}", spec)
    return LabelledRecords(images, positions, members)


class _RowGroups:
    """The columns that are read, a row group at a time; what `convert` made of the last few is kept."""

    def __init__(self, file: pq.ParquetFile, names: list[str], spec: DataSpec, path: Path) -> None:
        self._names, self._path = names, path
        most_rows = _MOST_IMAGES if spec.image_column is not None else max(1, MOST_BYTES // (8 * math.prod(spec.shape)))
        self._file = _with_small_groups(file, names, most_rows)
        self._starts = np.concatenate([[0], np.cumsum([group.num_rows for group in _groups(self._file)])])
        self._starts = self._starts.astype(np.int64)
        self._kept: OrderedDict[int, Any] = OrderedDict()
        self._lock = threading.Lock()  # a batch may be read ahead while another is asked for

    def parts(
        self, positions: npt.NDArray[np.int64], convert: Callable[[pa.Table, int], Any]
    ) -> Iterator[tuple[npt.NDArray[np.int64], Any, npt.NDArray[np.int64]]]:
        """For each row group: which of `positions` lie in it, what `convert` makes of it, and in which rows of that.

        `convert` gets a row group as a table, and the position of its first row.
        """
        groups = np.searchsorted(self._starts, positions, side="right") - 1
        for group in np.unique(groups).tolist():
            at = np.flatnonzero(groups == group)
            yield at, self._converted(group, convert), positions[at] - self._starts[group]

    def _converted(self, group: int, convert: Callable[[pa.Table, int], Any]) -> Any:
        with self._lock:
            if group not in self._kept:
                while len(self._kept) >= _KEPT:
                    self._kept.popitem(last=False)
                with reading(self._path, _WHAT):
                    table = self._file.read_row_group(group, columns=self._names)
                    if table.num_rows != self._starts[group + 1] - self._starts[group]:
                        raise DataError(f"{shown(self._path)} has a row group that is cut short or damaged")
                    self._kept[group] = convert(table, int(self._starts[group]))
            self._kept.move_to_end(group)
            return self._kept[group]


class _Numbers(LazyFeatures):
    """Columns of numbers, a row for each record."""

    def __init__(self, count: int, groups: _RowGroups, dtype: npt.DTypeLike, spec: DataSpec, path: Path) -> None:
        super().__init__((count, *spec.shape), numbers.feature_dtype(dtype, spec))
        self._groups, self._stored, self._spec, self._path = groups, np.dtype(dtype), spec, path

    def rows(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """From the row groups that they lie in."""
        features = np.empty((len(positions), *self._spec.shape), self.dtype)
        for at, group, rows in self._groups.parts(positions, self._convert):
            features[at] = group[rows]
        return features

    def _convert(self, table: pa.Table, first: int) -> npt.NDArray[Any]:
        cells = np.empty((table.num_rows, table.num_columns), self._stored)
        for at, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
            _refuse_null(column, name, self._path, first)
            cells[:, at] = column.to_numpy()
        rows = numbers.to_features(cells, self._spec, lambda row: f"{shown(self._path)}: row {first + row + 1}")
        return rows.reshape(-1, *self._spec.shape)


def _images(groups: _RowGroups, positions: npt.NDArray[np.int64], name: str, path: Path) -> list[bytes]:
    """The encoded images at these positions."""
    images = [b""] * len(positions)
    for at, column, rows in groups.parts(positions, lambda table, _first: table.column(0).combine_chunks()):
        for place, row in zip(at.tolist(), rows.tolist(), strict=True):
            cell = column[row].as_py()
            data = cell.get("bytes") if isinstance(cell, dict) else cell
            if not isinstance(data, bytes):
                row = int(positions[place]) + 1
                raise DataError(f"{shown(path)}: row {row} has no image bytes in column {quoted(name)}")
            images[place] = data
    return images


def _groups(file: pq.ParquetFile) -> list[pq.RowGroupMetaData]:
    return [file.metadata.row_group(at) for at in range(file.metadata.num_row_groups)]


def _with_small_groups(file: pq.ParquetFile, names: list[str], most_rows: int) -> pq.ParquetFile:
    """The file itself, or a copy of these columns where some row group has more rows or bytes than can be kept."""
    largest = max((group.total_byte_size / max(1, group.num_rows) for group in _groups(file)), default=0.0)
    rows = max(1, min(most_rows, int(MOST_BYTES // max(1.0, largest))))
    if all(group.num_rows <= rows for group in _groups(file)):
        return file
    copy = temporary_file()
    with room_for_temporary_files():
        schema = pa.schema([file.schema_arrow.field(name) for name in names])
        with pq.ParquetWriter(copy, schema, compression="NONE", use_dictionary=False) as writer:
            for batch in file.iter_batches(batch_size=rows, columns=names):
                writer.write_batch(batch)
    return pq.ParquetFile(copy)


def _labels(file: pq.ParquetFile, name: str, spec: DataSpec, path: Path) -> npt.NDArray[np.int64]:
    positions, row = [np.zeros(0, dtype=np.int64)], 0
    for batch in file.iter_batches(batch_size=_LABELS_AT_ONCE, columns=[name]):
        column = batch.column(0)
        _refuse_null(column, name, path, row)
        if types.is_dictionary(column.type):
            column = column.dictionary_decode()
        values = column.to_pylist() if _is_text(column.type) else column.to_numpy(zero_copy_only=False)
        positions.append(labels.encode(values, spec.classes, path, row + 1))
        row += batch.num_rows
    if row != file.metadata.num_rows:
        raise DataError(f"{shown(path)} announces {file.metadata.num_rows} rows but has {row}; it is damaged")
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
