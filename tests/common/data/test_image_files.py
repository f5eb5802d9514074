"""SVHN and CIFAR-100, from tiny files in the format that their authors publish."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from dpdd.common.data import benchmarks
from dpdd.common.data.image_files import CIFAR100_RECORD
from dpdd.common.errors import DataError


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPDD_DATA", str(tmp_path))
    return tmp_path


def write_svhn(folder: Path, images: np.ndarray, labels: np.ndarray, **more: object) -> None:
    folder.mkdir(exist_ok=True)
    arrays = {"X": images.transpose(2, 3, 1, 0), "y": labels[:, None], **more}
    for split in ("train", "test"):
        savemat(folder / f"{split}_32x32.mat", arrays, do_compression=True)


def write_cifar100(folder: Path, images: np.ndarray, labels: np.ndarray, classes: list[str]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "fine_label_names.txt").write_text("\n".join(classes) + "\n")
    pairs = np.stack([np.full(len(labels), 19, np.uint8), labels.astype(np.uint8)], axis=1)
    for split in ("train", "test"):
        np.concatenate([pairs, images.reshape(len(images), -1)], axis=1).tofile(folder / f"{split}.bin")


def some_images(count: int) -> np.ndarray:
    return np.random.Generator(np.random.PCG64(5)).integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)


def test_svhn_as_it_is_published(data: Path) -> None:
    images = some_images(3)
    assert not benchmarks.available("svhn")
    write_svhn(data / "svhn", images, np.array([1, 10, 9], np.uint8))
    assert benchmarks.available("svhn")
    for split in ("train", "test"):
        loaded = benchmarks.load("svhn", split)  # type: ignore[arg-type]
        assert (loaded.images == images).all() and loaded.classes == tuple("0123456789")
        assert loaded.labels.tolist() == [1, 0, 9]  # 10 is the digit 0


def test_cifar100_as_it_is_published(data: Path) -> None:
    images, classes = some_images(3), [f"class_{number}" for number in range(100)]
    assert not benchmarks.available("cifar100")
    write_cifar100(data / "cifar-100-binary", images, np.array([99, 0, 42]), classes)
    assert benchmarks.available("cifar100")
    for split in ("train", "test"):
        loaded = benchmarks.load("cifar100", split)  # type: ignore[arg-type]
        assert (loaded.images == images).all() and loaded.labels.tolist() == [99, 0, 42]
        assert loaded.classes == tuple(classes)


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"X": np.zeros((32, 32, 3, 2))}, "'X' must be uint8"),
        ({"X": np.zeros((32, 31, 3, 2), np.uint8)}, "'X' must be uint8"),
        ({"y": np.ones((3, 1), np.uint8)}, "a label for each of the 2 images"),
        ({"y": np.array([[1], [11]], np.uint8)}, "label 11 of image 2 is not from 1 to 10"),
        ({"y": np.array([[0], [1]], np.uint8)}, "label 0 of image 1"),
    ],
)
def test_an_odd_svhn_file_is_refused(data: Path, change: dict[str, np.ndarray], fragment: str) -> None:
    write_svhn(data / "svhn", some_images(2), np.array([1, 2], np.uint8), **change)
    with pytest.raises(DataError, match=fragment):
        benchmarks.load("svhn", "train")


def test_damaged_files_are_refused(data: Path) -> None:
    write_svhn(data / "svhn", some_images(2), np.array([1, 2], np.uint8))
    path = data / "svhn" / "train_32x32.mat"
    damaged = bytearray(path.read_bytes())
    damaged[1000:1100] = bytes(100)
    path.write_bytes(damaged)
    with pytest.raises(DataError, match="cannot be read as a MATLAB file"):
        benchmarks.load("svhn", "train")
    write_cifar100(data / "cifar-100-binary", some_images(2), np.array([0, 3]), ["a", "b", "c"])
    with pytest.raises(DataError, match=r"has a label 3, and .*fine_label_names.txt has 3 names"):
        benchmarks.load("cifar100", "test")
    path = data / "cifar-100-binary" / "train.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=f"not a whole number of records of {CIFAR100_RECORD}"):
        benchmarks.load("cifar100", "train")


def test_what_is_not_there_is_named_with_where_to_get_it(data: Path) -> None:
    for name, fragment in (("svhn", "ufldl.stanford.edu"), ("cifar100", "fine_label_names.txt")):
        with pytest.raises(DataError, match=f"{name} was not found; looked at: .*{fragment}"):
            benchmarks.load(name, "train")
