"""A pair of IDX files (plain or gzipped): grey images in one, a label number each in the other.

A plain file of images is read where it is, record by record; a gzipped one is unpacked into a temporary file first.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from dpdd.common.data import fitting
from dpdd.common.data.formats import labels
from dpdd.common.data.formats.numbers import NumericFeatures
from dpdd.common.data.formats.spec import DataSpec
from dpdd.common.data.labelled_records import LabelledRecords
from dpdd.common.data.row_file import RowFile, copy_bytes, temporary_file
from dpdd.common.errors import DataError
from dpdd.common.files import idx
from dpdd.common.files.untrusted import shown


def load(spec: DataSpec, base: Path) -> LabelledRecords:
    """Return the records in the IDX files `spec.path` and `spec.labels`."""
    if spec.labels is None:
        raise DataError(f"{shown(spec.path)} is an IDX file and needs a file of labels beside it; declare labels")
    path, label_path = base / spec.path, base / spec.labels
    with idx.content(path, 3) as images:
        numbers = idx.read_labels(label_path)
        if images.shape[0] != len(numbers):
            raise DataError(f"{shown(path)} and {shown(label_path)} must hold equally many records, but do not")
        _check_size(images.shape[1:], spec, path)
        rows = _rows(path, images)
    positions = labels.encode(numbers, spec.classes, label_path, unit="record")
    features = NumericFeatures(rows, "no channels", spec, lambda position: f"{shown(path)}: record {position + 1}")
    return LabelledRecords(features, positions)


def _rows(path: Path, images: idx.Content) -> RowFile:
    count, *size = images.shape
    if images.offset is not None:
        return RowFile.open(path, images.offset, count, tuple(size), np.uint8)
    unpacked = temporary_file()
    idx.check_whole(path, images, copy_bytes(images.stream, unpacked, math.prod(images.shape)))
    return RowFile(unpacked, str(path), 0, count, tuple(size), np.uint8)


def _check_size(size: tuple[int, ...], spec: DataSpec, path: Path) -> None:
    _, height, width = spec.shape
    if spec.fit == "exact" and size != (height, width):
        raise DataError(
            f"{shown(path)} holds images of {size[0]} x {size[1]} pixels (height x width), "
            f'but {height} x {width} is declared; fit = "resize", "crop" or "pad" takes other sizes'
        )
    if math.prod(size) > fitting.MOST_PIXELS:
        raise DataError(
            f"{shown(path)} holds images of {size[0]} x {size[1]} pixels (height x width), "
            f"and at most {fitting.MOST_PIXELS} altogether are fitted"
        )
