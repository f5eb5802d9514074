"""A folder with one sub-folder per class and one image file per record.

A sub-folder is named after its class (or the class's position); classes without a sub-folder have no record.
Hidden files and those that file managers write (Thumbs.db) are passed over; anything else that is not an image is an
error, because a record that is silently left out is worse than a refusal. Records come class by class, then
by file name. Opening lists the files; each is decoded when it is read.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePath

import numpy as np
import numpy.typing as npt

from dpdd.common.data.formats import groups, labels
from dpdd.common.data.formats.encoded_images import SUFFIXES, EncodedImages
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
    labelled_files: list[tuple[int, str, str]] = []  # names only: there may be millions
    for entry in _entries(folder):
        if entry.is_dir():
            position = labels.of_folder(entry.name, spec.classes, Path(entry.path))
            labelled_files.extend((position, name, entry.name) for name in _images(Path(entry.path)))
        elif _suffix(entry.name) in SUFFIXES:
            raise DataError(f"{shown(entry.path)} lies outside the class folders; move it into the folder of its class")
    labelled_files.sort()
    files = [f"{parent}/{name}" for _, name, parent in labelled_files]
    images = EncodedImages(
        len(files),
        lambda positions: [folder / files[position] for position in positions],
        lambda position: str(folder / files[position]),
        spec,
    )
    positions = np.array([position for position, _, _ in labelled_files], dtype=np.int64)
    return LabelledRecords(images, positions, _groups(files, folder, spec))


def _groups(files: list[str], folder: Path, spec: DataSpec) -> npt.NDArray[np.str_] | None:
    if spec.group_pattern is None:
        return None
    pattern = spec.group_pattern
    return np.array([groups.of_file_name(PurePath(file).name, pattern, folder / file) for file in files], dtype=np.str_)


def _images(folder: Path) -> list[str]:
    names: list[str] = []
    others: list[str] = []
    with reading(folder, _WHAT), os.scandir(folder) as entries:
        for entry in entries:
            if not _passed_over(entry.name):
                is_image = _suffix(entry.name) in SUFFIXES and entry.is_file()
                (names if is_image else others).append(entry.name)
    if others:
        raise DataError(f"{shown(folder / min(others))} is not an image file ({', '.join(SUFFIXES)}); remove it")
    return names


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with reading(folder, _WHAT), os.scandir(folder) as entries:
        return sorted((entry for entry in entries if not _passed_over(entry.name)), key=lambda entry: entry.name)


def _passed_over(name: str) -> bool:
    return name.startswith(".") or name.lower() in _SYSTEM_FILES


def _suffix(name: str) -> str:
    return PurePath(name).suffix.lower()
