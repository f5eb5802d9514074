"""Fitting images to the declared shape: the same mathematics in every silo, whatever the images came in.

Sizes are changed by Pillow's bilinear filter, which is antialiased: where an image shrinks, each new pixel is a
weighted mean of all that it covers. `resize` stretches to the declared height and width; `crop` takes the largest
centred part with their proportions; `pad` keeps all of the image and fills up with zeros, evenly on both sides. Grey
becomes colour by repetition, colour grey by ITU-R 601 luma, before any of that.

>>> wide = np.full((1, 4, 8), 200, dtype=np.uint8)
>>> fitted(wide, (1, 4, 4), "pad")[0, :, 0].tolist(), fitted(wide, (3, 2, 2), "crop").shape
([0, 200, 200, 0], (3, 2, 2))
>>> describe((1, 4, 8), (1, 4, 4), "crop")
'scaled to 8 x 4, centre 4 x 4 cut out'
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from dpdd.common.data.schema import Fit

MOST_PIXELS = 1 << 26
"""Height times width of an image that is fitted, at most: a file that claims more is not decoded."""

_LUMA = (0.299, 0.587, 0.114)


def fitted(pixels: npt.NDArray[Any], shape: tuple[int, ...], fit: Fit) -> npt.NDArray[Any]:
    """Return an image (C, H, W; uint8, or float32 in [0, 1]) in the declared shape and the same dtype.

    A value that is not finite spoils the new pixels that it is part of, and stays visible in them.
    """
    pixels = recoloured(pixels, shape[0])
    if pixels.shape == shape:
        return pixels
    if fit == "exact":
        raise ValueError(f"an image of shape {pixels.shape} is not fitted to {shape} exactly")
    channels, height, width = shape
    inner, box = _geometry(pixels.shape[1:], (height, width), fit)
    if pixels.dtype == np.uint8:
        planes = [_resized(pixels[0] if channels == 1 else pixels.transpose(1, 2, 0), inner, box)]
        scaled = planes[0][None] if channels == 1 else planes[0].transpose(2, 0, 1)
    else:
        scaled = np.stack([_resized(plane, inner, box) for plane in pixels])
        np.clip(scaled, 0.0, 1.0, out=scaled, where=np.isfinite(scaled))  # weights add up to 1 but for rounding
    if scaled.shape == shape:
        return scaled
    padded = np.zeros(shape, dtype=pixels.dtype)
    top, left = (height - inner[0]) // 2, (width - inner[1]) // 2
    padded[:, top : top + inner[0], left : left + inner[1]] = scaled
    return padded


def recoloured(pixels: npt.NDArray[Any], channels: int) -> npt.NDArray[Any]:
    """Return an image with 1 or 3 channels with the declared number of them."""
    if len(pixels) == channels:
        return pixels
    if len(pixels) == 1:
        return np.repeat(pixels, channels, axis=0)
    if pixels.dtype == np.uint8:
        return np.asarray(Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0))).convert("L"))[None]
    with np.errstate(invalid="ignore"):
        luma: npt.NDArray[Any] = sum(np.float32(weight) * plane for weight, plane in zip(_LUMA, pixels, strict=True))
    np.clip(luma, 0.0, 1.0, out=luma, where=np.isfinite(luma))
    return luma[None]


def describe(original: tuple[int, ...], shape: tuple[int, ...], fit: Fit) -> str:
    """Say what `fitted` does with an image of the shape `original`."""
    steps = []
    if original[0] != shape[0]:
        steps.append("made grey" if shape[0] == 1 else "grey repeated as RGB")
    if original[1:] != shape[1:]:
        inner, box = _geometry(original[1:], shape[1:], fit)
        if fit == "crop":
            scale = inner[0] / (box[3] - box[1])
            whole = tuple(round(side * scale) for side in original[1:])
            steps.append(f"scaled to {_size(whole)}")
            steps += [f"centre {_size(shape[1:])} cut out"] if whole != shape[1:] else []
        elif fit == "pad":
            steps.append(f"scaled to {_size(inner)}")
            steps += [f"filled up with zeros to {_size(shape[1:])}"] if inner != shape[1:] else []
        else:
            steps.append(f"resized to {_size(shape[1:])}")
    return ", ".join(steps) or "as it is"


def _geometry(
    original: tuple[int, ...], wanted: tuple[int, ...], fit: Fit
) -> tuple[tuple[int, int], tuple[float, float, float, float]]:
    """Height and width to scale to, and the part of the original (left, upper, right, lower) that is scaled."""
    (rows, columns), (height, width) = original, wanted
    if fit == "crop":
        scale = max(height / rows, width / columns)
        tall, wide = min(float(rows), height / scale), min(float(columns), width / scale)
        upper, left = (rows - tall) / 2, (columns - wide) / 2
        return (height, width), (left, upper, left + wide, upper + tall)
    whole = (0.0, 0.0, float(columns), float(rows))
    if fit == "pad":
        scale = min(height / rows, width / columns)
        return (max(1, round(rows * scale)), max(1, round(columns * scale))), whole
    return (height, width), whole


def _resized(
    pixels: npt.NDArray[Any], size: tuple[int, int], box: tuple[float, float, float, float]
) -> npt.NDArray[Any]:
    image = Image.fromarray(np.ascontiguousarray(pixels))  # L, RGB, or F: one float32 plane
    return np.asarray(image.resize((size[1], size[0]), Image.Resampling.BILINEAR, box=box))


def _size(size: tuple[int, ...]) -> str:
    """Width x height, as people say it."""
    return f"{size[1]} x {size[0]}"
