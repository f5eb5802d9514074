"""A folder with one sub-folder per class and one image file per record.

A sub-folder is named after its class (or the class's position); classes without a sub-folder have no record.
Hidden files and those that file managers write (Thumbs.db) are passed over; anything else that is not an image is an
error, because a record that is silently left out is worse than a refusal. Records come class by class, then
by file name.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpdd.common.data.formats import encoded_images, groups, labels
from dpdd.common.data.formats.spec import DataSpec
from dpdd.common.data.labelled_records import LabelledRecords
from dpdd.common.errors import DataError
from dpdd.common.files.untrusted import reading, shown

_SYSTEM_FILES = ("thumbs.db", "desktop.ini", "icon\r")
_WHAT = "a folder with one sub-folder per class"


def load(spec: DataSpec, base: Path) -> LabelledRecords:
    """Return the records in the folder `spec.path`."""
    folder = base / spec.path
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{shown(folder)} is a file; {_WHAT} was expected there")
    labelled_files: list[tuple[int, Path]] = []
    for entry in _entries(folder):
        if entry.is_dir():
            position = labels.of_folder(entry.name, spec.classes, entry)
            labelled_files.extend((position, file) for file in _images(entry))
        elif entry.suffix.lower() in encoded_images.SUFFIXES:
            raise DataError(f"{shown(entry)} lies outside the class folders; move it into the folder of its class")
    labelled_files.sort(key=lambda pair: (pair[0], pair[1].name, pair[1].parent.name))
    features = np.empty((len(labelled_files), *spec.shape), dtype=np.uint8)
    for row, (_, file) in enumerate(labelled_files):
        features[row] = encoded_images.decode(file, spec.shape, str(file))
    positions = np.array([position for position, _ in labelled_files], dtype=np.int64)
    return LabelledRecords(features, positions, _groups([file for _, file in labelled_files], spec))


def _groups(files: list[Path], spec: DataSpec) -> npt.NDArray[np.str_] | None:
    if spec.group_pattern is None:
        return None
    return np.array([groups.of_file_name(file.name, spec.group_pattern, file) for file in files], dtype=np.str_)


def _images(folder: Path) -> list[Path]:
    files = []
    for entry in _entries(folder):
        if entry.suffix.lower() not in encoded_images.SUFFIXES or not entry.is_file():
            raise DataError(f"{shown(entry)} is not an image file ({', '.join(encoded_images.SUFFIXES)}); remove it")
        files.append(entry)
    return files


def _entries(folder: Path) -> list[Path]:
    with reading(folder, _WHAT):
        entries = sorted(folder.iterdir())
    return [entry for entry in entries if not entry.name.startswith(".") and entry.name.lower() not in _SYSTEM_FILES]
