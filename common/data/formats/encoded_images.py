"""Encoded images (PNG, JPEG, BMP, GIF, WebP), turned into uint8 pixels of the declared shape.

Width and height must match exactly and are compared before a single pixel is decoded, so a decompression bomb
is refused while it is still small. Colours follow the declared channel count: grey becomes RGB by repetition,
RGB becomes grey by ITU-R 601 luma, an alpha channel is dropped, a palette is looked up. Of an animation the
first frame counts; EXIF rotation is not applied.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from dpdd.common.errors import DataError, DpddError
from dpdd.common.files.untrusted import shown

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")

_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP")
_GREY = ("1", "L", "LA", "La")
_COLOUR = ("P", "PA", "RGB", "RGBA", "RGBa", "RGBX")


def decode(source: Path | bytes, shape: tuple[int, ...], where: str) -> npt.NDArray[np.uint8]:
    """Return one image as C, H, W; `where` ("scan.png", "scans.parquet: row 7") begins every message."""
    channels, height, width = shape
    where = shown(where)
    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=_FORMATS) as image:
            if image.size != (width, height):
                raise DataError(
                    f"{where}: the image is {image.width} x {image.height} pixels (width x height), "
                    f"but {width} x {height} is declared"
                )
            if image.mode not in _GREY + _COLOUR:
                raise DataError(
                    f"{where}: the image has colour mode {image.mode}; 8-bit grey, RGB, RGBA or palette is needed"
                )
            pixels = np.asarray(_convert(image, channels))
    except DpddError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{where}: there is no such image file") from error
    except Image.DecompressionBombError as error:
        raise DataError(f"{where}: the image is far larger than the declared {width} x {height} pixels") from error
    except Exception as error:  # Pillow answers damaged bytes with almost any exception
        raise DataError(
            f"{where}: not a readable PNG, JPEG, BMP, GIF or WebP image ({type(error).__name__})"
        ) from error
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def _convert(image: Image.Image, channels: int) -> Image.Image:
    if image.mode in _GREY:
        grey = image.convert("L")
        return grey if channels == 1 else grey.convert("RGB")
    colour = image.convert("RGB")
    return colour if channels == 3 else colour.convert("L")
