"""Public images without labels of their own: a benchmark's, an archive's, or all image files below a folder.

They are read as 8-bit images of one shape, whatever they came in (`dpdd.common.data.fitting`), always in one order.

>>> import tempfile
>>> base = Path(tempfile.mkdtemp())
>>> np.savez(base / "photos.npz", images=np.zeros((4, 10, 8, 3), dtype=np.uint8))
>>> read_source(base / "photos.npz", (3, 8, 8)).shape
(4, 3, 8, 8)
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpdd.common.data import benchmarks, fitting
from dpdd.common.data.formats.encoded_images import SUFFIXES, EncodedImages
from dpdd.common.data.formats.spec import DataSpec
from dpdd.common.data.schema import Fit
from dpdd.common.errors import DataError
from dpdd.common.files import npz
from dpdd.common.files.untrusted import reading, shown

Shape = tuple[int, int, int]
_AT_ONCE = 10_000


def read_dataset(name: str, shape: Shape, fit: Fit = "resize") -> NDArray[np.uint8]:
    """The training images of a public benchmark."""
    return _fitted(benchmarks.load(name, "train").images, shape, fit, name)


def read_source(path: Path, shape: Shape, fit: Fit = "resize", images_key: str = "images") -> NDArray[np.uint8]:
    """The images in an ``.npz`` archive, or in all image files below a folder, by their paths."""
    if path.suffix.lower() == ".npz":
        return _fitted(_channels_first(npz.read(path, images_key), shown(path), images_key), shape, fit, shown(path))
    return _decoded(path, shape, fit)


def _channels_first(images: NDArray, where: str, key: str) -> NDArray[np.uint8]:
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise DataError(
            f"{where}: array {key!r} must hold 8-bit images (N, C, H, W; N, H, W, C; or N, H, W), "
            f"not {images.dtype} of shape {images.shape}"
        )
    if images.ndim == 3:
        return images[:, None]
    if images.shape[1] in (1, 3):
        return images
    if images.shape[3] in (1, 3):
        return images.transpose(0, 3, 1, 2)
    raise DataError(f"{where}: array {key!r} of shape {images.shape} has neither 1 nor 3 channels")


def _fitted(images: NDArray[np.uint8], shape: Shape, fit: Fit, where: str) -> NDArray[np.uint8]:
    if len(images) == 0:
        raise DataError(f"{where}: there are no images; at least one is needed")
    if images.shape[1:] == shape:
        return np.ascontiguousarray(images)
    if fit == "exact" and images.shape[2:] != shape[1:]:
        raise DataError(
            f"{where}: images of shape {images.shape[1:]} are not of shape {shape}; "
            'fit = "resize", "crop" or "pad" takes other sizes'
        )
    result = np.empty((len(images), *shape), np.uint8)
    for number, image in enumerate(images):
        result[number] = fitting.fitted(image, shape, fit)
    return result


def _decoded(folder: Path, shape: Shape, fit: Fit) -> NDArray[np.uint8]:
    files = _files(folder)
    spec = DataSpec(format="image-folder", path=folder, classes=("public", "images"), shape=shape, fit=fit)
    images = EncodedImages(
        len(files), lambda positions: [files[each] for each in positions], lambda position: str(files[position]), spec
    )
    parts = [
        images.rows(np.arange(start, min(start + _AT_ONCE, len(files)))) for start in range(0, len(files), _AT_ONCE)
    ]
    return np.concatenate(parts).astype(np.uint8, copy=False)


def _files(folder: Path) -> Sequence[Path]:
    if not folder.is_dir():
        raise DataError(f"{shown(folder)}: there is no such folder of images, and it is no .npz archive")
    found: list[Path] = []
    with reading(folder, "a folder of images"):
        for parent, folders, names in os.walk(folder):
            folders[:] = [name for name in folders if not name.startswith(".")]
            found += [Path(parent, name) for name in names if Path(name).suffix.lower() in SUFFIXES and name[0] != "."]
    if not found:
        raise DataError(f"{shown(folder)}: there is no image file in it ({', '.join(SUFFIXES)})")
    return sorted(found)
