"""An ``.npz`` archive with one array of images or features and one of labels; pickled content is refused.

Images are N, C, H, W or N, H, W, C, or N, H, W where they are grey; a table is N, d. Labels, and groups where there are
any, are N or N, 1. An array that ``np.savez`` wrote is read where it lies in the archive, record by record, after one
pass that verifies its checksum; a compressed one, or one in Fortran order, is unpacked into a temporary file first.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpdd.common.data import fitting
from dpdd.common.data.formats import groups, labels
from dpdd.common.data.formats.numbers import Layout, NumericFeatures, arranged_shape
from dpdd.common.data.formats.spec import DataSpec
from dpdd.common.data.labelled_records import LabelledRecords
from dpdd.common.data.row_file import RowFile, by_rows, copy_bytes, temporary_file
from dpdd.common.errors import DataError
from dpdd.common.files import npz
from dpdd.common.files.untrusted import shown


def load(spec: DataSpec, base: Path) -> LabelledRecords:
    """Return the records in the archive `spec.path`, under its `images_key` and `labels_key`."""
    path = base / spec.path
    # Both headers first: a wrong declaration is told before any data is read.
    features_shape, dtype = npz.header(path, spec.images_key)
    labels_shape, _ = npz.header(path, spec.labels_key)
    if dtype.kind not in "biuf":
        raise DataError(f"{shown(path)}: array {spec.images_key!r} must hold numbers, not {dtype}")
    layout = _layout(spec, path, features_shape)
    if labels_shape[:1] != features_shape[:1] or labels_shape[1:] not in ((), (1,)):
        raise DataError(
            f"{shown(path)}: array {spec.labels_key!r} must hold one label per record of "
            f"{spec.images_key!r}, but its shape is {labels_shape} beside {features_shape}"
        )
    positions = labels.encode(npz.read(path, spec.labels_key).reshape(-1), spec.classes, path, unit="record")
    rows = _rows(path, spec.images_key)
    features = NumericFeatures(rows, layout, spec, lambda position: f"{shown(path)}: record {position + 1}")
    return LabelledRecords(features, positions, _groups(spec, path))


def _groups(spec: DataSpec, path: Path) -> npt.NDArray[np.str_] | None:
    if spec.groups_key is None:
        return None
    records, _ = npz.header(path, spec.images_key)
    shape, dtype = npz.header(path, spec.groups_key)
    if shape[:1] != records[:1] or shape[1:] not in ((), (1,)) or dtype.kind not in "iuUS":
        raise DataError(
            f"{shown(path)}: array {spec.groups_key!r} must hold one group per record of {spec.images_key!r}, as text "
            f"or integers, but it is {dtype} of shape {shape} beside {records}"
        )
    return groups.named(npz.read(path, spec.groups_key).reshape(-1), path, "record")


def _rows(path: Path, key: str) -> RowFile:
    """The array's rows, read through once: to verify the checksum, and to unpack them where that is needed."""
    with npz.member(path, key) as array:
        stored = array.offset is not None
        unpacked = None if stored else temporary_file()
        npz.check_whole(path, key, copy_bytes(array.stream, unpacked, array.bytes), array.bytes)
        count, *row_shape = array.shape
        if array.fortran:
            count, row_shape = math.prod(array.shape), []
        if unpacked is None:
            rows = RowFile.open(path, array.offset or 0, count, tuple(row_shape), array.dtype)
        else:
            rows = RowFile(unpacked, str(path), 0, count, tuple(row_shape), array.dtype)
        return by_rows(rows, array.shape) if array.fortran else rows


def _layout(spec: DataSpec, path: Path, shape: tuple[int, ...]) -> Layout:
    """How the array's records stand in it; DataError where they are not what is declared and cannot be fitted."""
    record = shape[1:]
    if shape and record == spec.shape:
        return "as it is"
    if spec.is_table or spec.fit == "exact":
        declared: dict[tuple[int, ...], Layout] = {spec.shape: "as it is"}
        if not spec.is_table:
            channels, height, width = spec.shape
            declared |= {(height, width, channels): "channels last"}
            declared |= {(height, width): "no channels"} if channels == 1 else {}
        if not shape or record not in declared:
            forms = " or ".join(f"(N, {', '.join(map(str, form))})" for form in declared)
            raise DataError(f"{shown(path)}: array {spec.images_key!r} has shape {shape}, but {forms} is declared")
        return declared[record]
    layouts: list[Layout] = []
    if len(record) == 2:
        layouts.append("no channels")
    elif len(record) == 3:
        layouts += ["as it is"] if record[0] in (1, 3) else []
        layouts += ["channels last"] if record[2] in (1, 3) else []
    if len(layouts) != 1 or 0 in record or math.prod(arranged_shape(record, layouts[0])[1:]) > fitting.MOST_PIXELS:
        raise DataError(
            f"{shown(path)}: array {spec.images_key!r} has shape {shape}, which is not one of (N, C, H, W), "
            f"(N, H, W, C) and (N, H, W) with 1 or 3 channels and at most {fitting.MOST_PIXELS} pixels"
        )
    return layouts[0]
