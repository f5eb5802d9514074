"""Images as they come: several sizes, 8 and 16 bit, floats, DICOM; one rule makes the same of them in every format."""

from __future__ import annotations

import builtins
import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pydicom
import pytest
from PIL import Image
from pydicom.dataset import FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

from dpdd.common.data import fitting
from dpdd.common.data.features import Originals
from dpdd.common.data.fitting import fitted
from dpdd.common.data.formats import load
from dpdd.common.data.labelled_records import as_float
from dpdd.common.data.schema import Fit
from dpdd.common.errors import ConfigError, DataError
from dpdd.common.files import idx
from tests.common.data.formats.samples import CLASSES, picture, spec, write_csv

RULES: tuple[Fit, ...] = ("resize", "crop", "pad")


def one_file(base: Path, data: bytes, suffix: str = "png") -> None:
    (base / "f" / "cat").mkdir(parents=True, exist_ok=True)
    (base / "f" / "cat" / f"a.{suffix}").write_bytes(data)


def one(base: Path, shape: tuple[int, ...] = (1, 4, 5), **more: Any) -> np.ndarray:
    return load(spec("image-folder", "f", shape, **more), base).features[:][0]


def refused(base: Path, *fragments: str, shape: tuple[int, ...] = (1, 4, 5), **more: Any) -> None:
    with pytest.raises(DataError) as caught:
        one(base, shape, **more)
    for fragment in (*fragments, str(base)):
        assert fragment in str(caught.value), caught.value
    assert "\n" not in str(caught.value)


# Sizes


@pytest.mark.parametrize("fit", RULES)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_format_fits_alike(tmp_path: Path, fit: Fit, channels: int) -> None:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (5, channels, 9, 12), dtype=np.uint8)
    labels = np.array([0, 0, 0, 1, 1])
    expected = np.stack([fitted(image, (channels, 6, 5), fit) for image in images])
    encoded = [picture(image) for image in images]
    for row, data in enumerate(encoded):
        path = tmp_path / "f" / CLASSES[labels[row]] / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    write_csv(
        tmp_path / "t.csv",
        ["label", "file"],
        [[CLASSES[k], f"f/{CLASSES[k]}/{row}.png"] for row, k in enumerate(labels)],
    )
    pq.write_table(pa.table({"label": labels, "image": pa.array(encoded, pa.binary())}), tmp_path / "t.parquet")
    np.savez(tmp_path / "first.npz", images=images, labels=labels)
    np.savez_compressed(tmp_path / "last.npz", images=images.transpose(0, 2, 3, 1), labels=labels)
    np.savez(tmp_path / "float.npz", images=(images / 255), labels=labels)
    sources = [
        ("image-folder", "f", {}),
        ("csv", "t.csv", {"image_column": "file"}),
        ("parquet", "t.parquet", {"image_column": "image"}),
        ("npz", "first.npz", {}),
        ("npz", "last.npz", {}),
    ]
    if channels == 1:
        np.savez(tmp_path / "none.npz", images=np.asfortranarray(images[:, 0]), labels=labels)
        idx.write(tmp_path / "x", images[:, 0])
        idx.write(tmp_path / "y", labels.astype(np.uint8))
        sources += [("npz", "none.npz", {}), ("idx", "x", {"labels": "y"})]
    for form, path, more in sources:
        features = load(spec(form, path, (channels, 6, 5), fit=fit, **more), tmp_path).features
        assert features.dtype == np.uint8 and np.array_equal(features[:], expected), (form, path)
        assert np.array_equal(features[np.array([4, 1])], expected[[4, 1]])
        assert isinstance(features, Originals) and "12 x 9 pixels" in features.original(2)
    floats = load(spec("npz", "float.npz", (channels, 6, 5), fit=fit, value_range=(0, 1)), tmp_path).features[:]
    assert floats.dtype == np.float32 and np.abs(255 * floats - expected).max() < 1.5


def test_a_folder_of_many_sizes_and_kinds(tmp_path: Path) -> None:
    for row, (kind, size) in enumerate([("PNG", (9, 12)), ("JPEG", (40, 8)), ("BMP", (4, 5)), ("WEBP", (64, 64))]):
        shade = np.full((3, *size), 90, np.uint8)
        one_file(tmp_path, picture(shade, kind), f"{row}.{kind.lower()}")
    for fit in ("resize", "crop"):
        features = load(spec("image-folder", "f", (3, 4, 5), fit=fit), tmp_path).features[:]
        assert features.shape == (4, 3, 4, 5) and np.abs(features.astype(int) - 90).max() < 4


def test_numeric_arrays_change_colour_too(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 7, 9, 3), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=[0, 1])
    grey = load(spec("npz", "a.npz", (1, 4, 5), fit="resize"), tmp_path).features[:]
    assert np.array_equal(grey[1], fitted(images[1].transpose(2, 0, 1), (1, 4, 5), "resize"))


@pytest.mark.parametrize("shape", [(2, 5), (2, 3, 8, 3), (2, 2, 8, 8), (2, 8, 0), (2, 1 << 14, 1 << 13)])
def test_arrays_that_are_no_images_are_not_fitted(tmp_path: Path, shape: tuple[int, ...]) -> None:
    np.savez_compressed(tmp_path / "a.npz", images=np.zeros(shape, np.uint8), labels=[0, 1])
    with pytest.raises(DataError, match="which is not one of"):
        load(spec("npz", "a.npz", (1, 4, 5), fit="resize"), tmp_path)


@pytest.mark.parametrize("fit", ["exact", *RULES])
def test_a_bomb_is_refused_before_it_is_decoded(tmp_path: Path, fit: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "MOST_PIXELS", 100)
    one_file(tmp_path, picture(np.zeros((1, 10, 11), np.uint8))[:-16])  # it could not be decoded
    refused(tmp_path, "11 x 10 pixels", fit=fit)
    idx.write(tmp_path / "x", np.zeros((1, 10, 11), np.uint8))
    idx.write(tmp_path / "y", np.zeros(1, np.uint8))
    with pytest.raises(DataError, match="10 x 11 pixels"):
        load(spec("idx", "x", fit=fit, labels="y"), tmp_path)


# Depth


def encoded(array: np.ndarray, kind: str) -> bytes:
    out = io.BytesIO()
    Image.fromarray(array).save(out, kind)
    return out.getvalue()


@pytest.mark.parametrize("dtype, kind", [("uint16", "PNG"), ("uint16", "TIFF"), ("int32", "TIFF"), ("float32", "TIFF")])
@pytest.mark.parametrize("channels", [1, 3])
def test_deep_images_are_mapped_by_their_range(tmp_path: Path, dtype: str, kind: str, channels: int) -> None:
    values = np.random.default_rng(0).integers(0, 4096, (4, 5)).astype(dtype)
    one_file(tmp_path, encoded(values, kind), kind.lower())
    image = one(tmp_path, (channels, 4, 5), value_range=(0, 4095))
    assert image.dtype == np.float32 and image.shape == (channels, 4, 5)
    assert np.array_equal(image, np.repeat((values / 4095).astype(np.float32)[None], channels, axis=0))
    fit = one(tmp_path, (channels, 2, 2), value_range=(0, 4095), fit="resize")
    assert np.array_equal(fit, fitted(image, (channels, 2, 2), "resize"))
    refused(tmp_path, "colour mode", "declare the value_range", shape=(channels, 4, 5))
    refused(tmp_path, "outside value_range (0, 1000)", shape=(channels, 4, 5), value_range=(0, 1000))


def test_eight_bits_in_a_declared_range(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 100, (3, 4, 5), dtype=np.uint8)
    one_file(tmp_path, picture(values))
    image = one(tmp_path, (3, 4, 5), value_range=(0, 100))
    assert image.dtype == np.float32 and np.array_equal(image, (values / 100).astype(np.float32))


def test_sixteen_bit_colour_would_lose_bits(tmp_path: Path) -> None:
    """Pillow has no such mode and reads the upper eight bits."""
    png = bytearray(encoded(np.zeros((4, 5, 3), np.uint8), "PNG"))
    png[24] = 16  # bit depth, in the header chunk
    png[29:33] = struct.pack(">I", zlib.crc32(bytes(png[12:29])))
    one_file(tmp_path, bytes(png))
    refused(tmp_path, "of which 8 would be lost", value_range=(0, 65535))


def test_a_tiff_of_several_pages(tmp_path: Path) -> None:
    out = io.BytesIO()
    page = Image.new("L", (5, 4))
    page.save(out, "TIFF", save_all=True, append_images=[page])
    one_file(tmp_path, out.getvalue(), "tif")
    refused(tmp_path, "several pages")


# DICOM


def dicom(values: np.ndarray, **tags: Any) -> bytes:
    """A small DICOM file with these pixels."""
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = CTImageStorage, generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file = pydicom.Dataset()
    file.file_meta = meta
    file.SOPClassUID, file.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    file.Rows, file.Columns = values.shape[-2:] if values.shape[-1] != 3 else values.shape[-3:-1]
    bits = 8 * values.dtype.itemsize
    file.BitsAllocated = file.BitsStored = bits
    file.HighBit, file.PixelRepresentation = bits - 1, int(values.dtype.kind == "i")
    file.SamplesPerPixel, file.PhotometricInterpretation = 1, "MONOCHROME2"
    file.PixelData = values.tobytes()
    for name, value in tags.items():
        setattr(file, name, value)
    out = io.BytesIO()
    pydicom.dcmwrite(out, file, enforce_file_format=True)
    return out.getvalue()


HOUNSFIELD = np.random.default_rng(0).integers(-1200, 800, (4, 5)).astype(np.int16)


def test_dicom_is_rescaled_windowed_and_fitted(tmp_path: Path) -> None:
    stored = np.random.default_rng(0).integers(0, 1000, (4, 5)).astype(np.uint16)
    data = dicom(stored, RescaleSlope=2, RescaleIntercept=-1024)
    units = 2 * stored.astype(np.int64) - 1024
    expected = ((np.clip(units, -1000, 400) + 1000) / 1400).astype(np.float32)
    one_file(tmp_path, data, "dcm")
    image = one(tmp_path, value_range=(-1000, 400))
    assert image.dtype == np.float32 and np.array_equal(image[0], expected)
    assert np.array_equal(one(tmp_path, (3, 4, 5), value_range=(-1000, 400)), np.repeat(expected[None], 3, axis=0))
    small = one(tmp_path, (1, 2, 2), value_range=(-1000, 400), fit="crop")
    assert np.array_equal(small, fitted(expected[None], (1, 2, 2), "crop"))
    features = load(spec("image-folder", "f", (1, 2, 2), value_range=(-1000, 400), fit="crop"), tmp_path).features
    assert isinstance(features, Originals)
    assert "5 x 4 pixels, DICOM, MONOCHROME2, 16 bits: scaled to" in features.original(0)


def test_dicom_in_a_csv_and_in_parquet(tmp_path: Path) -> None:
    data = dicom(HOUNSFIELD)
    one_file(tmp_path, data, "dcm")
    write_csv(tmp_path / "t.csv", ["label", "file"], [["cat", "f/cat/a.dcm"]])
    pq.write_table(pa.table({"label": ["cat"], "image": pa.array([data], pa.binary())}), tmp_path / "t.parquet")
    expected = one(tmp_path, value_range=(-1000, 400))
    for form, column in (("csv", "file"), ("parquet", "image")):
        declared = spec(form, f"t.{form}", image_column=column, value_range=(-1000, 400))
        assert np.array_equal(load(declared, tmp_path).features[:][0], expected)


def test_monochrome1_is_inverted_in_its_window(tmp_path: Path) -> None:
    one_file(tmp_path, dicom(HOUNSFIELD), "dcm")
    bright = one(tmp_path, value_range=(-1000, 400))
    one_file(tmp_path, dicom(HOUNSFIELD, PhotometricInterpretation="MONOCHROME1"), "dcm")
    np.testing.assert_allclose(one(tmp_path, value_range=(-1000, 400)), 1 - bright, atol=1e-7)


def test_eight_bit_and_colour_dicom(tmp_path: Path) -> None:
    grey = np.random.default_rng(1).integers(0, 256, (4, 5), dtype=np.uint8)
    one_file(tmp_path, dicom(grey), "dcm")
    assert np.array_equal(one(tmp_path)[0], grey) and one(tmp_path).dtype == np.uint8
    colour = np.random.default_rng(1).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    tags = {"SamplesPerPixel": 3, "PhotometricInterpretation": "RGB", "PlanarConfiguration": 0}
    one_file(tmp_path, dicom(colour, **tags), "dcm")
    assert np.array_equal(one(tmp_path, (3, 4, 5)), colour.transpose(2, 0, 1))
    assert np.array_equal(one(tmp_path), fitted(colour.transpose(2, 0, 1), (1, 4, 5), "exact"))


def test_dicom_that_cannot_be_taken(tmp_path: Path) -> None:
    window: dict[str, Any] = {"value_range": (-1000, 400)}
    one_file(tmp_path, dicom(HOUNSFIELD), "dcm")
    refused(tmp_path, "more than 8 bits", "declare as value_range")
    refused(tmp_path, "5 x 4 pixels", "4 x 4 is declared", shape=(1, 4, 4), **window)
    one_file(tmp_path, dicom(np.stack([HOUNSFIELD] * 2), NumberOfFrames=2), "dcm")
    refused(tmp_path, "2 frames", "one file each", **window)
    one_file(tmp_path, dicom(HOUNSFIELD, PhotometricInterpretation="PALETTE COLOR"), "dcm")
    refused(tmp_path, "'PALETTE COLOR'", "MONOCHROME2", **window)
    one_file(tmp_path, dicom(HOUNSFIELD)[:-7], "dcm")
    refused(tmp_path, "not a DICOM file with pixels", **window)
    one_file(tmp_path, b"hello", "dcm")
    refused(tmp_path, "not a DICOM file with pixels", **window)


def test_dicom_without_pydicom_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "pydicom":
            raise ImportError(name)
        return real(name, *rest, **more)

    one_file(tmp_path, dicom(HOUNSFIELD), "dcm")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"dpdd\[medical\]"):
        one(tmp_path, value_range=(-1000, 400))


# Declarations


def test_the_type_never_depends_on_what_other_records_hold(tmp_path: Path) -> None:
    """One missing or fractional pixel leaves the other records as they are, to the last bit, type included."""
    values = np.arange(1024.0).reshape(64, 4, 2, 2) % 256
    for form in ("npz", "parquet", "csv"):
        read = []
        for odd in (0.0, 0.5, np.nan):
            changed = values[:, :1].copy()
            changed[-1, 0, 0, 0] = odd
            flat = changed.reshape(64, 4)
            np.savez(tmp_path / "t.npz", images=changed, labels=np.zeros(64, np.int64))
            columns = {f"p{at}": flat[:, at] for at in range(4)}
            pq.write_table(pa.table({"label": ["cat"] * 64, **columns}), tmp_path / "t.parquet")
            write_csv(tmp_path / "t.csv", ["label", *columns], [["cat", *row] for row in flat.tolist()])
            features = load(spec(form, f"t.{form}", (1, 2, 2)), tmp_path).features
            assert features.dtype == np.float32
            read.append(features[:-1].tobytes())
        assert read[0] == read[1] == read[2], form


def test_whole_numbers_are_the_same_in_8_bits_and_as_floats(tmp_path: Path) -> None:
    every = np.arange(256).reshape(64, 1, 2, 2)
    for dtype in (np.uint8, np.int64, np.float32, np.float64, ">u2"):
        np.savez(tmp_path / "t.npz", images=every.astype(dtype), labels=np.zeros(64, np.int64))
        features = load(spec("npz", "t.npz", (1, 2, 2)), tmp_path).features
        assert features.dtype == (np.uint8 if dtype is np.uint8 else np.float32)
        assert np.array_equal(as_float(features[:]), every.astype(np.float32) / np.float32(255))
