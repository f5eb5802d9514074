"""A Parquet file; rows are counted from 1.

Columns beside the label are numbers (pixels in the order channel, row, column; or the features of a table),
or `image_column` holds encoded images: plain bytes, or the ``{bytes, path}`` structs that Hugging Face
writes.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from dpdd.common.data.formats import encoded_images, groups, labels, numbers
from dpdd.common.data.formats.columns import Columns, choose, quoted
from dpdd.common.data.formats.spec import DataSpec
from dpdd.common.data.labelled_records import LabelledRecords
from dpdd.common.errors import DataError
from dpdd.common.files.untrusted import check_growth, reading, require_file, shown

_WHAT = "a Parquet file"
_BATCH_ROWS = 2048


def load(spec: DataSpec, base: Path) -> LabelledRecords:
    """Return the records in the Parquet file `spec.path`."""
    path = base / spec.path
    size = require_file(path, _WHAT)
    with reading(path, _WHAT), pq.ParquetFile(path) as file:
        schema = file.schema_arrow
        columns = choose(schema.names, spec, path)
        _check_types(schema, columns, path)
        # Run-length encoding lets a tiny file claim any number of rows.
        check_growth(path, size, file.metadata.num_rows * math.prod(spec.shape))
        read = [columns.label, *columns.numbers, *([] if columns.image is None else [columns.image])]
        names = [schema.names[position] for position in read]
        features, positions, row = [], [], 1
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=names):
            positions.append(_labels(batch.column(names[0]), spec, path, row))
            if columns.image is not None:
                features.append(_images(batch.column(names[-1]), spec, path, row))
            else:
                cells = [_numbers(batch.column(name), name, path, row) for name in names[1:]]
                features.append(numbers.to_features(np.stack(cells, axis=1), spec, path, row))
            row += batch.num_rows
        all_groups = _groups(file, columns, path)
    all_labels = np.concatenate([np.zeros(0, dtype=np.int64), *positions])
    return LabelledRecords(numbers.join(features, spec), all_labels, all_groups)


def _groups(file: pq.ParquetFile, columns: Columns, path: Path) -> npt.NDArray[np.str_] | None:
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


def _labels(column: pa.Array, spec: DataSpec, path: Path, first: int) -> npt.NDArray[np.int64]:
    _refuse_null(column, spec.label_column, path, first)
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if _is_text(column.type):
        return labels.encode(column.to_pylist(), spec.classes, path, first)
    return labels.encode(column.to_numpy(zero_copy_only=False), spec.classes, path, first)


def _numbers(column: pa.Array, name: str, path: Path, first: int) -> npt.NDArray[Any]:
    _refuse_null(column, name, path, first)
    values: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return values.astype(np.float64)


def _images(column: pa.Array, spec: DataSpec, path: Path, first: int) -> npt.NDArray[np.uint8]:
    features = np.empty((len(column), *spec.shape), dtype=np.uint8)
    for offset, cell in enumerate(column.to_pylist()):
        data = cell.get("bytes") if isinstance(cell, dict) else cell
        where = f"{path}: row {first + offset}"
        if not isinstance(data, bytes):
            raise DataError(f"{shown(where)} has no image bytes in column {quoted(str(spec.image_column))}")
        features[offset] = encoded_images.decode(data, spec.shape, where)
    return features


def _refuse_null(column: pa.Array, name: str, path: Path, first: int) -> None:
    if column.null_count:
        row = first + int(column.is_null().to_numpy(zero_copy_only=False).argmax())
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
