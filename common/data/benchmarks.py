"""Public benchmark datasets, for simulations and for measuring what a distilled set is worth.

`fashion-slice` is shipped with the package. The others are looked for in ``$DPDD_DATA``, then where Debian's
`dataset-fashion-mnist` puts its files, then in what torchvision downloaded earlier, and are downloaded last (but for
SVHN, CIFAR-100 and Tiny-ImageNet, which are not).
CIFAR-10 and Tiny-ImageNet out of ``$DPDD_DATA`` are JPEGs, slightly lossy: say so beside every figure.

>>> names()
('cifar10', 'cifar100', 'fashion-mnist', 'fashion-slice', 'mnist', 'svhn', 'tinyimagenet32')
>>> test = load("fashion-slice", "test")
>>> len(test), test.shape, test.classes[0]
(4000, (1, 28, 28), 'T-shirt/top')
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from dpdd.common.data.image_files import read_cifar100, read_svhn
from dpdd.common.data.labelled_images import LabelledImages
from dpdd.common.data.lazy_torchvision import load_torchvision
from dpdd.common.errors import DataError
from dpdd.common.files import idx, npz
from dpdd.common.files.untrusted import reading, shown

Split = Literal["train", "test"]

ENVIRONMENT = "DPDD_DATA"
DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")

FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
MNIST_CLASSES = tuple("0123456789")


def names() -> tuple[str, ...]:
    """Return the names `load` knows."""
    return tuple(sorted(_DATASETS))


def available(name: str) -> bool:
    """Say whether every split of the dataset is on this disk, so that `load` need not download."""
    dataset = _dataset(name)
    places = dataset.places()
    return all(any(place.holds(split) for place in places) for split in dataset.splits)


def load(name: str, split: Split) -> LabelledImages:
    """Return one split of a dataset, from disk if it is there, else downloaded."""
    dataset = _dataset(name)
    if split not in dataset.splits:
        raise DataError(f"{name} has no split {split!r}; it has: {', '.join(dataset.splits)}")
    places = dataset.places()
    for place in places:
        if place.holds(split):
            return place.read(split)
    tried = [place.where for place in places]
    if data_folder() is None:
        tried.insert(0, f"${ENVIRONMENT} (not set)")
    if dataset.torchvision_name is not None:
        try:
            return _through_torchvision(dataset.torchvision_name, split)
        except Exception as error:
            reason = shown(" ".join(str(error).split()) or type(error).__name__, 120)
            tried.append(f"a download with torchvision into {shown(download_folder())} ({reason})")
            raise DataError(_not_found(name, tried, dataset.advice)) from error
    raise DataError(_not_found(name, tried, dataset.advice))


@dataclass(frozen=True)
class _Place:
    """Somewhere a dataset may be on this disk."""

    where: str
    holds: Callable[[Split], bool]
    read: Callable[[Split], LabelledImages]


@dataclass(frozen=True)
class _Dataset:
    """Where to look for a dataset, in order, and what to tell those who do not have it."""

    places: Callable[[], list[_Place]]
    advice: str
    torchvision_name: str | None = None
    splits: tuple[Split, ...] = ("train", "test")


def _dataset(name: str) -> _Dataset:
    if name not in _DATASETS:
        raise DataError(f"there is no dataset {shown(name, 60)!r}; the datasets are: {', '.join(names())}")
    return _DATASETS[name]


def _not_found(name: str, tried: list[str], advice: str) -> str:
    return f"{name} was not found; looked at: {'; '.join(tried)}; {advice}"


def data_folder() -> Path | None:
    """What ``$DPDD_DATA`` names, if it is set."""
    value = os.environ.get(ENVIRONMENT)
    return Path(value).expanduser() if value else None


def download_folder() -> Path:
    """Where downloads are kept: ``$DPDD_DATA``, or a cache of the user's."""
    return data_folder() or Path("~/.cache/dpdd").expanduser()


# IDX datasets: MNIST and Fashion-MNIST


def _idx_paths(folder: Path, split: Split) -> tuple[Path | None, Path | None]:
    stem = "train" if split == "train" else "t10k"

    def find(name: str) -> Path | None:
        candidates = (folder / f"{name}.gz", folder / name)
        return next((path for path in candidates if path.is_file()), None)

    return find(f"{stem}-images-idx3-ubyte"), find(f"{stem}-labels-idx1-ubyte")


def _idx_place(folder: Path, classes: tuple[str, ...]) -> _Place:
    def holds(split: Split) -> bool:
        return all(_idx_paths(folder, split))

    def read(split: Split) -> LabelledImages:
        images, labels = _idx_paths(folder, split)
        assert images is not None and labels is not None, "read is called where holds is true"
        return read_idx_pair(images, labels, classes)

    splits: tuple[Split, ...] = ("train", "test")
    missing = [split for split in splits if folder.is_dir() and not holds(split)]
    lacks = f" (its {' and '.join(missing)} files are not all there)" if missing else ""
    return _Place(shown(folder) + lacks, holds, read)


def read_idx_pair(images: Path, labels: Path, classes: tuple[str, ...]) -> LabelledImages:
    """Return the images of one IDX file with the labels of another."""
    pixels, numbers = idx.read_images(images), idx.read_labels(labels)
    if len(pixels) != len(numbers):
        raise DataError(f"{shown(images)} has {len(pixels)} images but {shown(labels)} has {len(numbers)} labels")
    with _naming(labels):
        return LabelledImages(pixels[:, None], numbers.astype(np.int64), classes)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except DataError as error:
        raise DataError(f"{shown(path)}: {error}") from error


def _fashion_places() -> list[_Place]:
    folder = data_folder()
    own = [] if folder is None else [_idx_place(folder / "fashion-mnist", FASHION_CLASSES)]
    return [
        *own,
        _idx_place(DEBIAN_FASHION_MNIST, FASHION_CLASSES),
        _idx_place(download_folder() / "FashionMNIST" / "raw", FASHION_CLASSES),
    ]


def _mnist_places() -> list[_Place]:
    folder = data_folder()
    own = [] if folder is None else [_idx_place(folder / "mnist", MNIST_CLASSES)]
    return [*own, _idx_place(download_folder() / "MNIST" / "raw", MNIST_CLASSES)]


# JPEG archives: CIFAR-10 and Tiny-ImageNet


def _jpeg_places(file: str) -> list[_Place]:
    folder = data_folder()
    if folder is None:
        return []
    path = folder / file
    return [_Place(shown(path), lambda split: path.is_file(), lambda split: read_jpeg_npz(path, split))]


def read_jpeg_npz(path: Path, split: Split) -> LabelledImages:
    """Return a split of an archive of JPEGs: their bytes joined, n + 1 offsets, n labels, and class names."""
    joined, offsets, labels, classes = (
        npz.read(path, key) for key in (f"{split}_jpeg", f"{split}_offsets", f"{split}_labels", "classes")
    )
    if joined.dtype != np.uint8 or joined.ndim != 1:
        raise DataError(f"{shown(path)}: '{split}_jpeg' must be one row of uint8, not {joined.dtype} {joined.shape}")
    if classes.dtype.kind != "U" or classes.ndim != 1:
        raise DataError(f"{shown(path)}: 'classes' must be one row of text, not {classes.dtype} {classes.shape}")
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise DataError(f"{shown(path)}: '{split}_labels' must be one row of integers, not {labels.dtype}")
    if offsets.dtype.kind not in "iu" or offsets.shape != (len(labels) + 1,):
        raise DataError(f"{shown(path)}: '{split}_offsets' must be {len(labels) + 1} integers, one more than labels")
    bounds = offsets.astype(np.int64)
    if not (bounds[0] == 0 and bounds[-1] == len(joined) and (np.diff(bounds) > 0).all()):
        raise DataError(f"{shown(path)}: '{split}_offsets' must rise from 0 to {len(joined)}, the number of bytes")
    images = _decode_jpegs(path, joined, bounds)
    with _naming(path):
        return LabelledImages(images, labels.astype(np.int64), tuple(map(str, classes)))


def _decode_jpegs(path: Path, joined: npt.NDArray[Any], bounds: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    if len(bounds) == 1:
        raise DataError(f"{shown(path)} holds no image; at least one was expected")
    data = joined.tobytes()
    images: npt.NDArray[np.uint8] | None = None
    for record, (start, end) in enumerate(pairwise(bounds.tolist())):
        with (
            reading(path, f"an archive of JPEGs, at record {record + 1}"),
            Image.open(io.BytesIO(data[start:end]), formats=["JPEG"]) as picture,
        ):
            # Size before pixels: a picture that differs from the first is never decoded.
            if images is None:
                images = np.empty((len(bounds) - 1, 3, picture.height, picture.width), dtype=np.uint8)
            if picture.size != (images.shape[3], images.shape[2]):
                raise DataError(
                    f"{shown(path)}: record {record + 1} is {picture.width} x {picture.height} pixels, "
                    f"but the first is {images.shape[3]} x {images.shape[2]}"
                )
            images[record] = np.asarray(picture.convert("RGB")).transpose(2, 0, 1)
    assert images is not None, "there is at least one record"
    return images


def _cifar_places() -> list[_Place]:
    folder = download_folder() / "cifar-10-batches-py"
    batches = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta"]

    def holds(split: Split) -> bool:
        return all((folder / batch).is_file() for batch in batches)

    def read(split: Split) -> LabelledImages:
        with reading(folder, "CIFAR-10 as torchvision downloads it"):
            return _through_torchvision("CIFAR10", split)

    return [*_jpeg_places("cifar10-jpeg.npz"), _Place(shown(folder), holds, read)]


# SVHN and CIFAR-100, as their authors publish them


def _svhn_places() -> list[_Place]:
    folder = download_folder() / "svhn"

    def file(split: Split) -> Path:
        return folder / f"{split}_32x32.mat"

    return [_Place(shown(folder), lambda split: file(split).is_file(), lambda split: read_svhn(file(split)))]


def _cifar100_places() -> list[_Place]:
    folder = download_folder() / "cifar-100-binary"
    names = folder / "fine_label_names.txt"

    def holds(split: Split) -> bool:
        return names.is_file() and (folder / f"{split}.bin").is_file()

    return [_Place(shown(folder), holds, lambda split: read_cifar100(folder / f"{split}.bin", names))]


# The slice that is shipped, and torchvision


def _slice_places() -> list[_Place]:
    resource = resources.files(__package__) / "fashion-slice.npz"

    def read(split: Split) -> LabelledImages:
        with resources.as_file(resource) as path:
            return read_slice(path, split)

    return [_Place(shown(resource), lambda split: resource.is_file(), read)]


def read_slice(path: Path, split: Split) -> LabelledImages:
    """Return a split of a Fashion-MNIST slice as `dpdd.scenarios.data.make_fashion_slice` writes it."""
    images, labels = npz.read(path, f"{split}_images"), npz.read(path, f"{split}_labels")
    if images.ndim != 3:
        raise DataError(f"{shown(path)}: '{split}_images' must be N, H, W, not {images.shape}")
    with _naming(path):
        return LabelledImages(images[:, None], labels.astype(np.int64), FASHION_CLASSES)


def _through_torchvision(name: str, split: Split) -> LabelledImages:
    torchvision = load_torchvision()
    folder = download_folder()
    folder.mkdir(parents=True, exist_ok=True)
    dataset = getattr(torchvision.datasets, name)(str(folder), train=split == "train", download=True)
    images = np.asarray(dataset.data)
    images = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    classes = {"FashionMNIST": FASHION_CLASSES, "MNIST": MNIST_CLASSES}.get(name) or tuple(dataset.classes)
    return LabelledImages(np.ascontiguousarray(images), np.asarray(dataset.targets, dtype=np.int64), classes)


_IDX_FILES = "train-images-idx3-ubyte.gz and the other three IDX files"
_DATASETS: dict[str, _Dataset] = {
    "fashion-slice": _Dataset(_slice_places, "it is part of the package, so install dpdd again"),
    "fashion-mnist": _Dataset(
        _fashion_places,
        f"set {ENVIRONMENT} to a folder with fashion-mnist/ ({_IDX_FILES}), or install Debian's "
        "dataset-fashion-mnist, or allow the download",
        "FashionMNIST",
    ),
    "mnist": _Dataset(
        _mnist_places,
        f"set {ENVIRONMENT} to a folder with mnist/ ({_IDX_FILES}), or allow the download",
        "MNIST",
    ),
    "cifar10": _Dataset(
        _cifar_places,
        f"set {ENVIRONMENT} to a folder with cifar10-jpeg.npz, or allow the download",
        "CIFAR10",
    ),
    "cifar100": _Dataset(
        _cifar100_places,
        f"set {ENVIRONMENT} to a folder with cifar-100-binary/ (train.bin, test.bin and fine_label_names.txt of "
        "https://www.cs.toronto.edu/~kriz/cifar.html)",
    ),
    "svhn": _Dataset(
        _svhn_places,
        f"set {ENVIRONMENT} to a folder with svhn/ (train_32x32.mat and test_32x32.mat of "
        "http://ufldl.stanford.edu/housenumbers)",
    ),
    "tinyimagenet32": _Dataset(
        lambda: _jpeg_places("tinyimagenet32-jpeg.npz"),
        f"set {ENVIRONMENT} to a folder with tinyimagenet32-jpeg.npz (there is no download for it)",
        splits=("train",),
    ),
}
