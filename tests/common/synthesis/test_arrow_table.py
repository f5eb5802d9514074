"""Pictures inside an Arrow table: every pixel comes back, and what is no such picture is refused."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dpdd.common.errors import DataError
from dpdd.common.synthesis.arrow_table import picture, png


@settings(max_examples=50, deadline=None)
@given(st.sampled_from([1, 2, 3, 4]), st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_every_pixel_comes_back(channels: int, height: int, width: int, seed: int) -> None:
    image = np.random.default_rng(seed).integers(0, 256, (channels, height, width), dtype=np.uint8)
    np.testing.assert_array_equal(picture(png(image), image.shape), image)


def saved(image: Image.Image, kind: str) -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize(
    "file",
    [
        b"",
        b"no picture",
        png(np.zeros((1, 4, 5), np.uint8))[:40],
        png(np.zeros((1, 5, 4), np.uint8)),
        png(np.zeros((3, 4, 5), np.uint8)),
        saved(Image.new("L", (5, 4)), "bmp"),
        saved(Image.new("1", (5, 4)), "png"),
        saved(Image.new("I;16", (5, 4)), "png"),
        saved(Image.new("P", (5, 4), 1), "png"),
    ],
    ids=["empty", "text", "cut", "turned", "colour", "bitmap", "1 bit", "16 bit", "palette"],
)
def test_other_files_are_refused(file: bytes) -> None:
    with pytest.raises(DataError):
        picture(file, (1, 4, 5))
