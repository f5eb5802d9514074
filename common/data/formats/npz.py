"""An ``.npz`` archive with one array of images or features and one of labels; pickled content is refused.

Images are N, C, H, W or N, H, W, C, or N, H, W where they are grey; a table is N, d. Labels, and groups where there are
any, are N or N, 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdd.common.data.formats import groups, labels, numbers
from dpdd.common.data.formats.spec import DataSpec
from dpdd.common.data.labelled_records import LabelledRecords
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
    _check_shape(spec, path, features_shape)
    if labels_shape[:1] != features_shape[:1] or labels_shape[1:] not in ((), (1,)):
        raise DataError(
            f"{shown(path)}: array {spec.labels_key!r} must hold one label per record of "
            f"{spec.images_key!r}, but its shape is {labels_shape} beside {features_shape}"
        )
    positions = labels.encode(npz.read(path, spec.labels_key).reshape(-1), spec.classes, path, unit="record")
    values = _channels_first(npz.read(path, spec.images_key), spec)
    return LabelledRecords(numbers.to_features(values, spec, path, unit="record"), positions, _groups(spec, path))


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


def _check_shape(spec: DataSpec, path: Path, shape: tuple[int, ...]) -> None:
    wanted = [spec.shape]
    if not spec.is_table:
        channels, height, width = spec.shape
        wanted += [(height, width, channels)] + ([(height, width)] if channels == 1 else [])
    if not shape or shape[1:] not in wanted:
        forms = " or ".join(f"(N, {', '.join(map(str, form))})" for form in dict.fromkeys(wanted))
        raise DataError(f"{shown(path)}: array {spec.images_key!r} has shape {shape}, but {forms} is declared")


def _channels_first(values: npt.NDArray[Any], spec: DataSpec) -> npt.NDArray[Any]:
    if values.ndim == 4 and values.shape[1:] != spec.shape:
        return np.ascontiguousarray(values.transpose(0, 3, 1, 2))
    return values
