"""A pair of IDX files (plain or gzipped): grey images in one, a label number each in the other."""

from __future__ import annotations

from pathlib import Path

from dpdd.common.data.formats import labels
from dpdd.common.data.formats.spec import DataSpec
from dpdd.common.data.labelled_records import LabelledRecords
from dpdd.common.errors import DataError
from dpdd.common.files import idx
from dpdd.common.files.untrusted import shown


def load(spec: DataSpec, base: Path) -> LabelledRecords:
    """Return the records in the IDX files `spec.path` and `spec.labels`."""
    if spec.labels is None:
        raise DataError(f"{shown(spec.path)} is an IDX file and needs a file of labels beside it; declare labels")
    path, label_path = base / spec.path, base / spec.labels
    images, numbers = idx.read_images(path), idx.read_labels(label_path)
    if len(images) != len(numbers):
        raise DataError(f"{shown(path)} and {shown(label_path)} must hold equally many records, but do not")
    if images.shape[1:] != spec.shape[1:]:
        _, height, width = spec.shape
        raise DataError(
            f"{shown(path)} holds images of {images.shape[1]} x {images.shape[2]} pixels (height x width), "
            f"but {height} x {width} is declared"
        )
    return LabelledRecords(images[:, None], labels.encode(numbers, spec.classes, label_path, unit="record"))
