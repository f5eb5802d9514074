"""Encoded images (PNG, JPEG, BMP, GIF, WebP, TIFF; DICOM with pydicom), decoded and fitted when they are read.

The size is compared before a single pixel is decoded, so a decompression bomb is refused while it is still small: it
must be the declared one where `fit` is "exact", and else at most `fitting.MOST_PIXELS`. Colours follow the declared
channel count: grey becomes RGB by repetition, RGB becomes grey by ITU-R 601 luma, an alpha channel is dropped, a
palette is looked up. 8-bit images stay 8-bit; a declared `value_range` maps 8-, 16- and 32-bit values onto [0, 1] as
float32. Of an animation the first frame counts; EXIF rotation is not applied.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from dpdd.common.data import fitting
from dpdd.common.data.features import LazyFeatures
from dpdd.common.data.formats import dicom, numbers
from dpdd.common.data.formats.spec import DataSpec
from dpdd.common.data.schema import DEFAULT_RANGE
from dpdd.common.errors import DataError, DpddError
from dpdd.common.files.untrusted import shown

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", *dicom.SUFFIXES)

_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")
_GREY = ("1", "L", "LA", "La")
_COLOUR = ("P", "PA", "RGB", "RGBA", "RGBa", "RGBX")
_DEEP = ("I;16", "I;16B", "I;16L", "I;16N", "I", "F")

Source = Path | bytes
"""An image file, or the bytes of one."""


class EncodedImages(LazyFeatures):
    """Images that `fetch(positions)` finds, decoded on all cores; `where(position)` begins a message about one."""

    def __init__(
        self,
        count: int,
        fetch: Callable[[npt.NDArray[np.int64]], Sequence[Source]],
        where: Callable[[int], str],
        spec: DataSpec,
    ) -> None:
        super().__init__((count, *spec.shape), numbers.feature_dtype(np.uint8, spec))
        self._fetch, self._where, self._spec = fetch, where, spec

    def rows(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Decode these images; of several that are damaged, the first is named."""
        sources = self._fetch(positions)
        images = np.empty((len(positions), *self._spec.shape), self.dtype)

        def decode_some(part: range) -> None:
            for row in part:
                images[row] = decode(sources[row], self._spec, self._where(int(positions[row])))

        workers = min(len(positions), cores())
        if workers <= 1:
            decode_some(range(len(positions)))
            return images
        size = -(-len(positions) // (4 * workers))  # several parts each, as images differ in size
        parts = [range(start, min(start + size, len(positions))) for start in range(0, len(positions), size)]
        with ThreadPoolExecutor(workers, thread_name_prefix="dpdd-decode") as pool:
            try:
                for _ in pool.map(decode_some, parts):
                    pass
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return images

    def original(self, position: int) -> str:
        """Where the image lies, its size and mode, and what is done with it."""
        (source,) = self._fetch(np.array([position]))
        where = self._where(position)
        if _is_dicom(source):
            shape, what = dicom.facts(source, where)
        else:
            with _opened(source, where) as image:
                shape = (1 if image.mode in _GREY + _DEEP else 3, image.height, image.width)
                what = f"{image.width} x {image.height} pixels, {image.format}, mode {image.mode}"
        if self._spec.fit == "exact" and shape[1:] != self._spec.shape[1:]:
            return f"{shown(where)}: {what}: refused"
        return f"{shown(where)}: {what}: {fitting.describe(shape, self._spec.shape, self._spec.fit)}"


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def decode(source: Source, spec: DataSpec, where: str) -> npt.NDArray[Any]:
    """Return one image in the declared shape; `where` ("scan.png", "scans.parquet: row 7") begins every message."""
    if _is_dicom(source):
        pixels = dicom.decode(source, spec, where)
    else:
        with _opened(source, where, spec) as image:
            check_size((image.height, image.width), spec, where)
            pixels = _pixels(image, spec, where)
        pixels = numbers.to_features(pixels[None], spec, lambda _row: shown(where))[0]
    return fitting.fitted(pixels, spec.shape, spec.fit)


def check_size(size: tuple[int, int], spec: DataSpec, where: str) -> None:
    """DataError unless an image of this height and width may be decoded."""
    _, height, width = spec.shape
    if spec.fit == "exact" and size != (height, width):
        raise DataError(
            f"{shown(where)}: the image is {size[1]} x {size[0]} pixels (width x height), "
            f'but {width} x {height} is declared; fit = "resize", "crop" or "pad" takes other sizes'
        )
    if size[0] * size[1] > fitting.MOST_PIXELS:
        raise DataError(
            f"{shown(where)}: the image is {size[1]} x {size[0]} pixels (width x height), "
            f"and at most {fitting.MOST_PIXELS} altogether are decoded"
        )


def _is_dicom(source: Source) -> bool:
    if isinstance(source, bytes):
        return dicom.is_dicom(source)
    return source.suffix.lower() in dicom.SUFFIXES


@contextmanager
def _opened(source: Source, where: str, spec: DataSpec | None = None) -> Iterator[Image.Image]:
    """An image whose pixels are not decoded yet; whatever goes wrong with it is a `DataError`."""
    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=_FORMATS) as image:
            yield image
    except DpddError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{shown(where)}: there is no such image file") from error
    except Image.DecompressionBombError as error:
        declared = "" if spec is None else f" than the declared {spec.shape[2]} x {spec.shape[1]} pixels"
        raise DataError(f"{shown(where)}: the image is far larger{declared}") from error
    except Exception as error:  # Pillow answers damaged bytes with almost any exception
        raise DataError(
            f"{shown(where)}: not a readable PNG, JPEG, BMP, GIF, WebP or TIFF image ({type(error).__name__})"
        ) from error


def _pixels(image: Image.Image, spec: DataSpec, where: str) -> npt.NDArray[Any]:
    """The image's values as C, H, W: 8-bit ones with the declared channels, deeper ones in their own type."""
    default = spec.value_range == DEFAULT_RANGE
    if image.format == "TIFF" and getattr(image, "n_frames", 1) > 1:
        raise DataError(f"{shown(where)}: the TIFF file has several pages; a record is one image, so write one each")
    if image.mode in _DEEP:
        if default:
            raise DataError(
                f"{shown(where)}: the image has colour mode {image.mode}, more than 8 bits a pixel; declare the "
                "value_range of its pixels, as [0, 65535]"
            )
        return np.asarray(image)[None]
    if image.mode not in _GREY + _COLOUR:
        raise DataError(
            f"{shown(where)}: the image has colour mode {image.mode}; 8-bit grey, RGB, RGBA or palette is needed, or "
            "16-bit grey"
        )
    if not default and _loses_bits(image):
        raise DataError(
            f"{shown(where)}: the image has 16 bits for each of several channels, of which 8 would be lost; "
            "write it as 16-bit grey, or as 8-bit colour without a value_range"
        )
    pixels = np.asarray(_convert(image, spec.shape[0]))
    return pixels[None] if spec.shape[0] == 1 else pixels.transpose(2, 0, 1)


def _loses_bits(image: Image.Image) -> bool:
    """Whether Pillow reads a 16-bit colour image as 8-bit: only the decoder's own raw mode tells."""
    modes = [args if isinstance(args, str) else (args or ("",))[0] for *_, args in getattr(image, "tile", ())]
    return any(";16" in str(mode) for mode in modes)


def _convert(image: Image.Image, channels: int) -> Image.Image:
    if image.mode in _GREY:
        grey = image.convert("L")
        return grey if channels == 1 else grey.convert("RGB")
    colour = image.convert("RGB")
    return colour if channels == 3 else colour.convert("L")
