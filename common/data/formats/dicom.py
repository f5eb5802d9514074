"""DICOM files, read with pydicom (the extra ``medical``): one frame each, windowed by the declared `value_range`.

Stored values are rescaled by the file's slope and intercept (to Hounsfield units, say). What lies below the declared
range counts as its lower end and what lies above as its upper end, as in a radiologist's window; MONOCHROME1, where
small values are bright, is inverted, so that bright is always near 1. Without a `value_range` only 8-bit files are
taken, and stay 8-bit.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpdd.common.data import fitting
from dpdd.common.data.formats.spec import DataSpec
from dpdd.common.data.schema import DEFAULT_RANGE
from dpdd.common.errors import ConfigError, DataError, DpddError
from dpdd.common.files.untrusted import shown

if TYPE_CHECKING:
    from pydicom import FileDataset

SUFFIXES = (".dcm", ".dicom")

_PREAMBLE = 128
_COLOURS = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")
_GREYS = ("MONOCHROME1", "MONOCHROME2")


def is_dicom(data: bytes) -> bool:
    """Whether these bytes are those of a DICOM file."""
    return data[_PREAMBLE : _PREAMBLE + 4] == b"DICM"


def decode(source: Path | bytes, spec: DataSpec, where: str) -> npt.NDArray[Any]:
    """Return the image as C, H, W, not fitted yet: float32 in [0, 1], or uint8 where no range is declared."""
    where = shown(where)
    with _opened(source, where) as file:
        _check(file, spec, where)
        values = np.asarray(file.pixel_array)
        if _interpretation(file) in _COLOURS:
            values = values.transpose(2, 0, 1)
        else:
            slope, intercept = float(file.get("RescaleSlope", 1) or 1), float(file.get("RescaleIntercept", 0) or 0)
            values = values[None] * slope + intercept
    low, high = spec.value_range
    seen = (np.clip(values.astype(np.float64), low, high) - low) / (high - low)
    if _interpretation(file) == "MONOCHROME1":
        seen = 1 - seen
    return np.rint(255 * seen).astype(np.uint8) if spec.value_range == DEFAULT_RANGE else seen.astype(np.float32)


def facts(source: Path | bytes, where: str) -> tuple[tuple[int, int, int], str]:
    """The shape of the image, and a few words about it."""
    with _opened(source, shown(where), pixels=False) as file:
        kind = _interpretation(file)
        shape = (3 if kind in _COLOURS else 1, int(file.Rows), int(file.Columns))
        return shape, f"{shape[2]} x {shape[1]} pixels, DICOM, {shown(kind, 20)}, {int(file.BitsStored)} bits"


def _check(file: FileDataset, spec: DataSpec, where: str) -> None:
    """DataError unless the image may and can be decoded; what it says of its size is compared before that."""
    frames = int(file.get("NumberOfFrames", 1) or 1)
    if frames > 1:
        raise DataError(f"{where}: the DICOM file has {frames} frames; a record is one image, so write one file each")
    size, (_, height, width) = (int(file.Rows), int(file.Columns)), spec.shape
    if size[0] * size[1] > fitting.MOST_PIXELS or (spec.fit == "exact" and size != (height, width)):
        most = f"{width} x {height} is declared" if spec.fit == "exact" else f"{fitting.MOST_PIXELS} are the most"
        raise DataError(f"{where}: the image is {size[1]} x {size[0]} pixels (width x height), but {most}")
    kind = _interpretation(file)
    if kind not in _GREYS + _COLOURS:
        raise DataError(
            f"{where}: the DICOM file has pixels of kind {shown(kind, 20)!r}; {', '.join(_GREYS)} or RGB is needed"
        )
    if spec.value_range == DEFAULT_RANGE and int(file.BitsAllocated) > 8:
        raise DataError(
            f"{where}: the DICOM file has more than 8 bits a pixel; declare as value_range the window that counts "
            "as dark to bright, in the file's own units, as [-1000, 400]"
        )


def _interpretation(file: FileDataset) -> str:
    return str(file.get("PhotometricInterpretation", ""))


@contextmanager
def _opened(source: Path | bytes, where: str, *, pixels: bool = True) -> Iterator[FileDataset]:
    """A DICOM file, as far as its pixels or with them; whatever goes wrong with it is a `DataError`."""
    try:
        import pydicom
    except ImportError:
        raise ConfigError(
            f"{where} is a DICOM file; `pip install 'dpdd[medical]'` brings pydicom, which reads it"
        ) from None
    try:
        stream = io.BytesIO(source) if isinstance(source, bytes) else source
        yield pydicom.dcmread(stream, stop_before_pixels=not pixels)
    except DpddError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{where}: there is no such image file") from error
    except Exception as error:  # damaged bytes, and pixels packed in a way that no installed plugin knows
        raise DataError(
            f"{where}: not a DICOM file with pixels that pydicom can read here ({type(error).__name__})"
        ) from error
