"""A comma-separated UTF-8 file with a header line; rows are counted from 1 below it.

Columns beside the label are numbers (pixels in the order channel, row, column; or the features of a table),
or `image_column` names image files in or below the folder of the CSV. pyarrow reads the numbers block by
block, into a temporary file that has one row per record; image files are decoded when they are read. Only when pyarrow
refuses is the CSV read again, slowly, to find the row and column to name.
"""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterator
from pathlib import Path, PurePath, PureWindowsPath

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as arrow_csv

from dpdd.common.data.features import Features
from dpdd.common.data.formats import groups, labels, numbers
from dpdd.common.data.formats.columns import Columns, choose, quoted
from dpdd.common.data.formats.encoded_images import EncodedImages
from dpdd.common.data.formats.spec import DataSpec
from dpdd.common.data.labelled_records import LabelledRecords
from dpdd.common.data.row_file import RowWriter
from dpdd.common.errors import DataError
from dpdd.common.files.untrusted import reading, require_file, shown

_WHAT = "a CSV file in UTF-8"
_MAX_HEADER = 1 << 24
_BLOCK = 1 << 22
_LONGEST_CELL = 64


def load(spec: DataSpec, base: Path) -> LabelledRecords:
    """Return the records in the CSV file `spec.path`."""
    path = base / spec.path
    require_file(path, _WHAT)
    names = _header(path)
    columns = choose(names, spec, path)
    positions: list[npt.NDArray[np.int64]] = [np.zeros(0, dtype=np.int64)]
    files: list[str] = []
    writer = RowWriter(spec.shape, numbers.feature_dtype(np.float64, spec))
    row = 1

    def where(at: int) -> str:
        return f"{shown(path)}: row {row + at}"

    for batch in _batches(path, names, columns):
        positions.append(labels.encode(batch.column(0).to_pylist(), spec.classes, path, row))
        if columns.image is not None:
            files += _image_files(batch.column(1).to_pylist(), path, row)
        else:
            cells = np.stack([column.to_numpy() for column in batch.columns[1:]], axis=1)
            writer.append(numbers.to_features(cells, spec, where).reshape(-1, *spec.shape))
        row += batch.num_rows
    features: Features = writer.finish() if columns.image is None else _images(files, spec, path)
    return LabelledRecords(features, np.concatenate(positions), _groups(path, names, columns))


def _groups(path: Path, names: list[str], columns: Columns) -> npt.NDArray[np.str_] | None:
    if columns.group is None:
        return None
    alone = dataclasses.replace(columns, label=columns.group, numbers=())
    return groups.named([cell for part in _batches(path, names, alone) for cell in part.column(0).to_pylist()], path)


def _header(path: Path) -> list[str]:
    with reading(path, _WHAT), path.open("rb") as file:
        line = file.readline(_MAX_HEADER)
        if line.startswith(b"\x1f\x8b"):
            raise DataError(f"{shown(path)} is gzipped; unpack it first")
        if len(line) == _MAX_HEADER:
            raise DataError(f"{shown(path)} has no line end in its first {_MAX_HEADER} bytes; it is not a CSV file")
        text = line.decode("utf-8-sig").rstrip("\r\n")
        if "\r" in text:
            raise DataError(f"{shown(path)} has lines that end in a carriage return alone; write it with usual ones")
        names = next(csv.reader([text], strict=True), [])
    if not names:
        raise DataError(f"{shown(path)} does not begin with a header line; its first line must name the columns")
    return names


def _batches(path: Path, names: list[str], columns: Columns) -> Iterator[pa.RecordBatch]:
    keys = [str(position) for position in range(len(names))]
    text = [keys[columns.label]] + ([] if columns.image is None else [keys[columns.image]])
    good = 0
    wanted = text + [keys[position] for position in columns.numbers]
    try:
        with arrow_csv.open_csv(
            str(path),
            read_options=arrow_csv.ReadOptions(
                column_names=keys, skip_rows=1, block_size=max(_BLOCK, _LONGEST_CELL * len(names))
            ),
            parse_options=arrow_csv.ParseOptions(newlines_in_values=columns.image is not None),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=wanted,
                column_types={key: pa.string() if key in text else pa.float64() for key in wanted},
                null_values=[],
                strings_can_be_null=False,
            ),
        ) as reader:
            for batch in reader:
                yield batch
                good += batch.num_rows
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        problem = _diagnosis(path, names, columns, good)
        if problem is not None:
            raise problem from error


def _diagnosis(path: Path, names: list[str], columns: Columns, good: int) -> DataError | None:
    """Find what pyarrow stumbled over after `good` rows; its messages lack the row and repeat the cell."""
    row = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, strict=True)
            next(rows, None)
            for cells in rows:
                if not cells:
                    continue
                row += 1
                if len(cells) != len(names):
                    return DataError(
                        f"{shown(path)}: row {row} has {len(cells)} cells, but the header has {len(names)}"
                    )
                if row > good and not _are_numbers([cells[position] for position in columns.numbers]):
                    wrong = next((at for at in columns.numbers if not _are_numbers([cells[at]])), columns.numbers[0])
                    state = "is not a number" if cells[wrong].strip() else "is empty (write nan for a missing value)"
                    return DataError(f"{shown(path)}: row {row}, column {quoted(names[wrong])} {state}")
    except (csv.Error, UnicodeDecodeError) as error:
        kind = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else "not well-formed CSV"
        return DataError(f"{shown(path)} is {kind} at or after row {row + 1}; export it as comma-separated UTF-8")
    if row == 0:
        return None  # pyarrow takes a header without rows for an error; it is a source without records
    return DataError(f"{shown(path)} is not well-formed CSV; export it as comma-separated UTF-8 with one header line")


def _are_numbers(cells: list[str]) -> bool:
    try:
        pa.array([cell.strip(" \t") for cell in cells], pa.string()).cast(pa.float64())
    except pa.ArrowInvalid:
        return False
    return True


def _image_files(names: list[str], path: Path, first: int) -> list[str]:
    for row, name in enumerate(names, first):
        where = f"{path}: row {row}"
        inside = PurePath(name)
        if not name or inside.is_absolute() or PureWindowsPath(name).is_absolute() or ".." in inside.parts:
            raise DataError(f"{shown(where)} must name an image file in or below {shown(path.parent)}")
        if "\0" in name or not (path.parent / inside).is_file():
            raise DataError(f"{shown(where)} names an image file that is not there, {shown(path.parent / inside)}")
    return names


def _images(files: list[str], spec: DataSpec, path: Path) -> EncodedImages:
    return EncodedImages(
        len(files),
        lambda positions: [path.parent / files[position] for position in positions],
        lambda position: f"{path}: row {position + 1}: {path.parent / files[position]}",
        spec,
    )
