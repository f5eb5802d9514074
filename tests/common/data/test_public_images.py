"""Public images, as benchmarks, archives and folders hold them: without labels, in one shape, in one order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpdd.common.data.public_images import read_dataset, read_source
from dpdd.common.errors import DataError

IMAGES = np.random.default_rng(0).integers(0, 256, (4, 3, 8, 10), dtype=np.uint8)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "photos.npz"
    forms = {"first": IMAGES, "last": IMAGES.transpose(0, 2, 3, 1), "grey": IMAGES[:, 0], "odd": IMAGES[:, :2]}
    np.savez(path, **forms, floats=IMAGES / 255.0, none=IMAGES[:0])
    return path


def test_an_archive_may_have_channels_first_last_or_none(archive: Path) -> None:
    for key in ("first", "last"):
        assert np.array_equal(read_source(archive, (3, 8, 10), "exact", key), IMAGES)
    grey = read_source(archive, (3, 8, 10), images_key="grey")
    assert np.array_equal(grey, np.repeat(IMAGES[:, :1], 3, axis=1))


def test_a_folder_is_read_by_path_with_all_below_it(tmp_path: Path) -> None:
    for name, image in zip(("b.png", "deep/c.png", "a.png", ".hidden.png"), IMAGES, strict=True):
        (tmp_path / "deep").mkdir(exist_ok=True)
        Image.fromarray(image.transpose(1, 2, 0)).save(tmp_path / name)
    (tmp_path / "licence.txt").write_text("CC0-1.0")
    assert np.array_equal(read_source(tmp_path, (3, 8, 10)), IMAGES[[2, 0, 1]])
    assert read_source(tmp_path, (1, 4, 4)).shape == (3, 1, 4, 4)


def test_a_benchmark_is_fitted_to_the_runs_shape() -> None:
    images = read_dataset("fashion-slice", (3, 14, 14))
    assert images.shape[1:] == (3, 14, 14) and images.dtype == np.uint8


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("odd", "neither 1 nor 3 channels"),
        ("floats", "must hold 8-bit images"),
        ("none", "there are no images"),
        ("other", "other"),
    ],
)
def test_what_is_wrong_with_an_archive_is_said(archive: Path, key: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        read_source(archive, (3, 8, 10), images_key=key)


def test_what_is_wrong_with_a_folder_is_said(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path, words in ((tmp_path / "empty", "no image file"), (tmp_path / "nowhere", "no such folder")):
        with pytest.raises(DataError, match=words):
            read_source(path, (3, 8, 10))
    with pytest.raises(DataError, match="takes other sizes"):
        read_source(archive, (3, 8, 8), "exact", "first")
