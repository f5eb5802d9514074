"""Fitting images: beside a slow twin written from the definition, and what has to hold for any image."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdd.common.data.fitting import describe, fitted
from dpdd.common.data.schema import Fit

RULES: tuple[Fit, ...] = ("resize", "crop", "pad")


def weights(size: int, low: float, high: float, new: int) -> np.ndarray:
    """Row i: what each old pixel weighs in new pixel i; a triangle over what it covers, cut off at the edges."""
    scale = (high - low) / new
    reach = max(scale, 1.0)
    table = np.zeros((new, size))
    for i, j in itertools.product(range(new), range(size)):
        table[i, j] = max(0.0, 1.0 - abs(j + 0.5 - (low + (i + 0.5) * scale)) / reach)
    return table / table.sum(axis=1, keepdims=True)


def twin(image: np.ndarray, shape: tuple[int, int, int], fit: Fit) -> np.ndarray:
    """The same in float64, pixel by pixel."""
    _, rows, columns = image.shape
    _, height, width = shape
    if fit == "pad":
        scale = min(height / rows, width / columns)
        tall, wide = max(1, round(rows * scale)), max(1, round(columns * scale))
    else:
        tall, wide = height, width
    top, left, bottom, right = 0.0, 0.0, float(rows), float(columns)
    if fit == "crop":
        scale = max(height / rows, width / columns)
        top, left = (rows - height / scale) / 2, (columns - width / scale) / 2
        bottom, right = rows - top, columns - left
    down, across = weights(rows, top, bottom, tall), weights(columns, left, right, wide)
    out = np.zeros(shape)
    y, x = (height - tall) // 2, (width - wide) // 2
    out[:, y : y + tall, x : x + wide] = np.einsum("ij,cjk,lk->cil", down, image.astype(np.float64), across)
    return out


SIZES = st.tuples(st.integers(1, 40), st.integers(1, 40))


@given(old=SIZES, new=SIZES, channels=st.sampled_from([1, 3]), fit=st.sampled_from(RULES), seed=st.integers(0, 99))
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
def test_fitting_is_a_weighted_mean(
    old: tuple[int, int], new: tuple[int, int], channels: int, fit: Fit, seed: int
) -> None:
    small = np.random.default_rng(seed).integers(0, 256, (channels, *old), dtype=np.uint8)
    expected = twin(small, (channels, *new), fit)
    for image, unit, tolerance in ((small, 1.0, 1.01), ((small / 255).astype(np.float32), 255.0, 1e-3)):
        result = fitted(image, (channels, *new), fit)
        assert result.shape == (channels, *new) and result.dtype == image.dtype
        # 8-bit results are rounded after each direction.
        np.testing.assert_allclose(result.astype(np.float64) * unit, expected, atol=tolerance)


@pytest.mark.parametrize("factor", [2, 4])
def test_a_flat_block_becomes_a_pixel(factor: int) -> None:
    """Where every new pixel covers a flat neighbourhood, it has its value: no shift of half a pixel."""
    image = np.zeros((1, 6 * factor, 6 * factor), np.uint8)
    image[:, 2 * factor : 4 * factor, 2 * factor : 4 * factor] = 200
    result = fitted(image, (1, 6, 6), "resize")[0]
    assert np.array_equal(result, result.T) and np.array_equal(result, result[::-1, ::-1])
    assert result[2, 2] > 100 > result[1, 1] and not result[0].any()


@given(old=SIZES, new=SIZES, value=st.integers(0, 255), fit=st.sampled_from(RULES), channels=st.sampled_from([1, 3]))
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
def test_constant_images_stay_constant(
    old: tuple[int, int], new: tuple[int, int], value: int, fit: Fit, channels: int
) -> None:
    for image in (np.full((1, *old), value, np.uint8), np.full((1, *old), value / 255, np.float32)):
        result = fitted(image, (channels, *new), fit)
        inside = result if fit != "pad" else result[result != 0]
        assert np.allclose(inside, image.ravel()[0], rtol=1e-6) and result.min() >= 0 and result.max() <= 255
        if fit == "pad" and value:
            assert result.any(axis=(0, 1)).sum() == new[1] or result.any(axis=(0, 2)).sum() == new[0]


@pytest.mark.parametrize("size", [(8, 16), (16, 8), (10, 10), (12, 29)])
def test_crop_and_pad_keep_proportions(size: tuple[int, int]) -> None:
    """A disc stays a disc; `resize` makes an ellipse of it."""
    rows, columns = (each * 8 for each in size)
    y, x = np.mgrid[:rows, :columns]
    radius = 0.3 * min(rows, columns)
    disc = (255 * ((y - rows / 2 + 0.5) ** 2 + (x - columns / 2 + 0.5) ** 2 < radius**2)).astype(np.uint8)[None]
    for fit in RULES:
        seen = fitted(disc, (1, 48, 48), fit)[0] > 127
        tall, wide = seen.any(axis=1).sum(), seen.any(axis=0).sum()
        if fit != "resize" or size[0] == size[1]:
            assert abs(int(tall) - int(wide)) <= 1
        else:
            assert abs(int(tall) - int(wide)) > 5


@pytest.mark.parametrize("fit", RULES)
def test_what_is_not_finite_stays_so(fit: Fit) -> None:
    for value in (np.nan, np.inf, -np.inf):
        image = np.full((1, 12, 16), 0.5, np.float32)
        image[0, 6, 8] = value
        for channels in (1, 3):
            assert not np.isfinite(fitted(image, (channels, 5, 5), fit)).all()
    colours = np.full((3, 4, 4), 0.5, np.float32)
    colours[1, 2, 2] = np.nan
    assert np.isnan(fitted(colours, (1, 4, 4), fit)).sum() == 1


def test_colours() -> None:
    for dtype, one in ((np.uint8, 255), (np.float32, 1.0)):
        image = np.zeros((3, 1, 4), dtype)
        image[0, 0, 0] = image[1, 0, 1] = image[2, 0, 2] = one
        image[:, 0, 3] = one
        grey = fitted(image, (1, 1, 4), "exact")
        np.testing.assert_allclose(grey.ravel() / one, [0.299, 0.587, 0.114, 1.0], atol=0.002)
        assert np.array_equal(fitted(grey, (3, 1, 4), "exact"), np.repeat(grey, 3, axis=0))
    with pytest.raises(ValueError, match="exactly"):
        fitted(np.zeros((1, 2, 2), np.uint8), (1, 3, 3), "exact")


def test_what_is_done_is_said() -> None:
    assert describe((3, 100, 200), (1, 50, 50), "crop") == "made grey, scaled to 100 x 50, centre 50 x 50 cut out"
    assert describe((1, 100, 200), (3, 50, 50), "pad") == (
        "grey repeated as RGB, scaled to 50 x 25, filled up with zeros to 50 x 50"
    )
    assert describe((1, 100, 200), (1, 50, 50), "resize") == "resized to 50 x 50"
    assert describe((1, 100, 100), (1, 50, 50), "crop") == describe((1, 100, 100), (1, 50, 50), "pad")
    assert describe((1, 28, 28), (1, 28, 28), "exact") == "as it is"
