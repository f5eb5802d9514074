"""What is said about malformed private data: one line, with the path, and the row where there is one."""

from __future__ import annotations

import gzip
import io
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dpdd.common.data.formats import DataSpec, load, numbers
from dpdd.common.errors import DataError
from dpdd.common.files import idx
from dpdd.common.files import untrusted as files

CLASSES = ("cat", "dog")


def refused(base: Path, form: str, path: str, *fragments: str, shape: tuple[int, ...] = (1, 2, 2), **more: Any) -> str:
    declared = DataSpec(format=form, path=path, classes=CLASSES, shape=shape, **more)  # type: ignore[arg-type]
    with pytest.raises(DataError) as caught:
        load(declared, base).features[:]
    message = str(caught.value)
    assert "\n" not in message and str(base) in message
    for fragment in fragments:
        assert fragment in message, message
    return message


def png(width: int = 2, height: int = 2, mode: str = "L") -> bytes:
    out = io.BytesIO()
    Image.new(mode, (width, height)).save(out, "PNG" if mode != "CMYK" else "JPEG")
    return out.getvalue()


def huge_png(width: int, height: int) -> bytes:
    """A few bytes that claim to be an enormous picture."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("form", ["image-folder", "idx", "npz", "csv", "parquet"])
def test_nothing_there(tmp_path: Path, form: str) -> None:
    more = {"labels": "labels"} if form == "idx" else {}
    refused(tmp_path, form, "absent", str(tmp_path / "absent"), "does not exist", **more)


@pytest.mark.parametrize("form", ["idx", "npz", "csv", "parquet"])
def test_a_folder_or_a_pipe_where_a_file_should_be(tmp_path: Path, form: str) -> None:
    more = {"labels": "labels"} if form == "idx" else {}
    refused(tmp_path, form, ".", "is a folder", **more)
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path, form, "pipe", "not a regular file", **more)


# Image folders


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "f" / "cat").mkdir(parents=True)
    (tmp_path / "f" / "cat" / "a.png").write_bytes(png())
    return tmp_path / "f"


def in_folder(folder: Path, *fragments: str) -> None:
    refused(folder.parent, "image-folder", "f", *fragments)


def test_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    in_folder(tmp_path / "f", "is a file")


def test_folder_of_no_class(folder: Path) -> None:
    (folder / "do\ng").mkdir()
    in_folder(folder, "f/do\\ng", "none of the 2 classes ('cat', 'dog')")


def test_image_outside_the_class_folders(folder: Path) -> None:
    (folder / "b.png").write_bytes(png())
    in_folder(folder, str(folder / "b.png"), "outside the class folders")


@pytest.mark.parametrize("name", ["notes.txt", "deeper.png"])
def test_something_else_in_a_class_folder(folder: Path, name: str) -> None:
    if name.endswith("png"):
        (folder / "cat" / name).mkdir()
    else:
        (folder / "cat" / name).write_text("x")
    in_folder(folder, str(folder / "cat" / name), "is not an image file")


@pytest.mark.parametrize(
    ("data", "fragments"),
    [
        (png(3, 2), ("3 x 2 pixels", "2 x 2 is declared")),
        (png(mode="I;16"), ("colour mode I;16", "declare the value_range", "[0, 65535]")),
        (png(mode="CMYK"), ("colour mode CMYK",)),
        (png()[:45], ("not a readable PNG",)),
        (b"", ("not a readable PNG",)),
        (b"hello", ("not a readable PNG",)),
        (huge_png(60_000, 60_000), ("far larger than the declared 2 x 2",)),
        (huge_png(3000, 3000), ("3000 x 3000 pixels",)),
        (huge_png(2, 2)[:-30], ("not a readable PNG",)),
    ],
)
def test_unfit_images(folder: Path, data: bytes, fragments: tuple[str, ...]) -> None:
    (folder / "cat" / "b.png").write_bytes(data)
    in_folder(folder, str(folder / "cat" / "b.png"), *fragments)


def test_an_image_format_that_is_not_on_the_list(folder: Path) -> None:
    Image.new("L", (2, 2)).save(folder / "cat" / "b.ppm")
    (folder / "cat" / "b.ppm").rename(folder / "cat" / "b.png")
    in_folder(folder, "b.png", "not a readable PNG, JPEG, BMP, GIF, WebP or TIFF")


# IDX


def write_idx(base: Path, images: np.ndarray, labels: np.ndarray) -> None:
    idx.write(base / "x", images)
    idx.write(base / "y", labels)


@pytest.mark.parametrize(
    ("images", "labels", "fragments"),
    [
        (np.zeros((2, 2, 2), np.uint8), np.zeros(3, np.uint8), ("equally many",)),
        (np.zeros((2, 2, 3), np.uint8), np.zeros(2, np.uint8), ("2 x 3 pixels", "2 x 2 is declared")),
        (np.zeros((2, 2, 2), np.uint8), np.array([0, 2], np.uint8), ("/y", "record 2", "none of the 2")),
    ],
)
def test_unfit_idx_files(tmp_path: Path, images: np.ndarray, labels: np.ndarray, fragments: tuple[str, ...]) -> None:
    write_idx(tmp_path, images, labels)
    refused(tmp_path, "idx", "x", *fragments, labels="y")


def test_idx_cut_short_and_swapped(tmp_path: Path) -> None:
    write_idx(tmp_path, np.zeros((2, 2, 2), np.uint8), np.zeros(2, np.uint8))
    refused(tmp_path, "idx", "y", "swapped", labels="x")
    (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes()[:-1])
    refused(tmp_path, "idx", "x", str(tmp_path / "x"), "cut short", labels="y")


# npz

GOOD = np.zeros((3, 1, 2, 2), np.uint8)


@pytest.mark.parametrize(
    ("images", "labels", "fragments"),
    [
        (GOOD, np.array([0, 1, 2]), ("record 3", "none of the 2 classes")),
        (GOOD, np.array([0, -1, 1]), ("record 2", "none of the 2 classes")),
        (GOOD, np.array(["cat", "dog", "Cat"]), ("record 3", "none of the 2 classes")),
        (GOOD, np.array([b"cat", b"\xff", b"dog"]), ("record 2", "none of the 2 classes")),
        (GOOD, np.zeros(3), ("class names or integers", "float64")),
        (GOOD, np.zeros(2, np.int64), ("one label per record", "(2,)")),
        (GOOD, np.zeros((3, 2), np.int64), ("one label per record", "(3, 2)")),
        (GOOD, np.array(0), ("one label per record",)),
        (
            np.zeros((3, 1, 2, 3)),
            np.zeros(3, np.int64),
            ("(3, 1, 2, 3)", "(N, 1, 2, 2) or (N, 2, 2, 1) or (N, 2, 2)"),
        ),
        (np.array(3), np.zeros(3, np.int64), ("has shape ()",)),
        (GOOD.astype(str), np.zeros(3, np.int64), ("must hold numbers",)),
        (GOOD.astype(complex), np.zeros(3, np.int64), ("must hold numbers",)),
        (GOOD.astype(object), np.zeros(3, np.int64), ("Python objects",)),
    ],
)
def test_unfit_archives(tmp_path: Path, images: np.ndarray, labels: np.ndarray, fragments: tuple[str, ...]) -> None:
    np.savez(tmp_path / "a.npz", images=images, labels=labels)
    refused(tmp_path, "npz", "a.npz", str(tmp_path / "a.npz"), *fragments)


def test_archive_without_the_declared_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=GOOD, y=np.zeros(3, np.int64))
    refused(tmp_path, "npz", "a.npz", "no array 'images'", "'x', 'y'")
    refused(tmp_path, "npz", "a.npz", "no array 'labels'", "'x', 'y'", images_key="x")


# Values, alike in all three numeric formats


def numeric(base: Path, form: str, values: np.ndarray) -> str:
    values = np.asarray(values, dtype=np.float64)
    path = base / f"t.{form}"
    if form == "csv":
        rows = "".join(f"cat,{','.join(map(repr, row))}\n" for row in values.tolist())
        path.write_text(f"label,{','.join(f'f{at}' for at in range(values.shape[1]))}\n{rows}")
    elif form == "parquet":
        columns = {f"f{at}": column for at, column in enumerate(values.T)}
        pq.write_table(pa.table({"label": ["cat"] * len(values), **columns}), path)
    else:
        np.savez(
            path,
            images=values.reshape(-1, 1, 2, 2) if values.shape[1] == 4 else values,
            labels=[0] * len(values),
        )
    return path.name


@pytest.mark.parametrize("form", ["npz", "csv", "parquet"])
@pytest.mark.parametrize("value", [255.5, -1, 1e300])
def test_pixels_outside_their_range(tmp_path: Path, form: str, value: float) -> None:
    values = np.zeros((5000, 4))
    values[4321, 2] = value
    values[10, 1] = np.nan
    name = numeric(tmp_path, form, values)
    unit = "record" if form == "npz" else "row"
    message = refused(tmp_path, form, name, f"{unit} 4322 has a value outside value_range (0, 255)")
    assert str(value) not in message.removeprefix(str(tmp_path))


def test_records_are_counted_across_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "_CHUNK", 1001)
    values = np.zeros((5000, 4))
    values[4321, 2] = 256
    refused(tmp_path, "npz", numeric(tmp_path, "npz", values), "record 4322 has a value outside")


@pytest.mark.parametrize("form", ["npz", "csv", "parquet"])
def test_table_values_beyond_32_bits(tmp_path: Path, form: str) -> None:
    name = numeric(tmp_path, form, np.array([[np.inf, 1, 2], [0, 1e39, 0]]))
    unit = "record" if form == "npz" else "row"
    refused(tmp_path, form, name, f"{unit} 2 has a value too large", shape=(3,))


# CSV


@pytest.mark.parametrize(
    ("content", "fragments"),
    [
        (b"", ("does not begin with a header line",)),
        (b"\n", ("does not begin with a header line",)),
        (b"y,a,b\ncat,1,2\n", ("no column 'label' (label_column)", "'y', 'a', 'b'")),
        (b"label;a;b\ncat;1;2\n", ("no column 'label'", "'label;a;b'")),
        (b"label,a,a\ncat,1,2\n", ("the column 'a' more than once",)),
        (b"label,a\ncat,1\n", ("1 columns beside 'label'", "shape declares 2 features")),
        (b"label,a,b\ncat,1,2\ndog,1\n", ("row 2 has 2 cells", "header has 3")),
        (b"label,a,b\ncat,1,2\ndog,1,2,3\n", ("row 2 has 4 cells", "header has 3")),
        (b"label,a,b\ncat,1,2\n\ndog,1,secret\n", ("row 2, column 'b' is not a number",)),
        (b"label,a,b\ncat,1,\n", ("row 1, column 'b' is empty (write nan for a missing value)",)),
        (b"label,a,b\ncat,1,2\nemu,1,2\n", ("the label of row 2 is none of the 2 classes ('cat', 'dog')",)),
        (b"label,a,b\n,1,2\n", ("the label of row 1",)),
        (b"label,a,b\n2,1,2\n", ("the label of row 1",)),
        (b"label,a,b\n" + b"9" * 5000 + b",1,2\n", ("the label of row 1",)),
        (b"label,a,b\ncat,1,2\nd\xffg,1,2\n", ("not UTF-8 text",)),
        (b"label,a,\xff\ncat,1,2\n", ("cannot be read as a CSV file in UTF-8",)),
        (b"label,a,b\rcat,1,2\r", ("carriage return",)),
        (gzip.compress(b"label,a,b\ncat,1,2\n", mtime=0), ("is gzipped; unpack it first",)),
    ],
)
def test_unfit_csv_files(tmp_path: Path, content: bytes, fragments: tuple[str, ...]) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    message = refused(tmp_path, "csv", "t.csv", str(tmp_path / "t.csv"), *fragments, shape=(2,))
    assert "secret" not in message and "emu" not in message and "9999" not in message


def test_a_bad_cell_far_down_is_found(tmp_path: Path) -> None:
    wide = ",".join(["100000"] * 200)
    rows = [f"cat,{wide}"] * 8000
    rows[7654] = "dog," + wide.replace("100000", "ten", 1)
    header = ",".join(["label", *(f"f{at}" for at in range(200))])
    (tmp_path / "t.csv").write_text("\n".join([header, *rows]))
    refused(tmp_path, "csv", "t.csv", "row 7655, column 'f0' is not a number", shape=(200,))
    rows[7654] = "emu," + wide
    (tmp_path / "t.csv").write_text("\n".join([header, *rows]))
    refused(tmp_path, "csv", "t.csv", "the label of row 7655", shape=(200,))


def test_a_first_line_without_end(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"x" * (1 << 24))
    refused(tmp_path, "csv", "t.csv", "no line end", shape=(2,))


@pytest.mark.parametrize(
    ("name", "fragment"),
    [
        ("", "must name an image file in or below"),
        ("/etc/passwd", "must name an image file in or below"),
        ("C:\\pictures\\a.png", "must name an image file in or below"),
        ("../a.png", "must name an image file in or below"),
        ("absent.png", "not there"),
        ("a\0b.png", "not there"),
        ("odd.png", "3 x 2 pixels"),
        ("t.csv", "not a readable PNG"),
    ],
)
def test_csv_naming_unfit_image_files(tmp_path: Path, name: str, fragment: str) -> None:
    (tmp_path / "good.png").write_bytes(png())
    (tmp_path / "odd.png").write_bytes(png(3, 2))
    (tmp_path.parent / "a.png").write_bytes(png())
    (tmp_path / "t.csv").write_text(f"label,file\ncat,good.png\ndog,{name}\n")
    refused(tmp_path, "csv", "t.csv", f"{tmp_path / 't.csv'}: row 2", fragment, image_column="file")
    refused(tmp_path, "csv", "t.csv", "no column 'image' (image_column)", "'label', 'file'", image_column="image")


# Parquet


def parquet(**columns: Any) -> Callable[[Path], None]:
    return lambda path: pq.write_table(pa.table(columns), path)


@pytest.mark.parametrize(
    ("write", "fragments"),
    [
        (parquet(y=[1], a=[1], b=[1]), ("no column 'label'", "'y', 'a', 'b'")),
        (parquet(label=[0], a=[1]), ("1 columns beside 'label'",)),
        (parquet(label=[0], a=[1], b=["x"]), ("column 'b' must hold numbers, not string",)),
        (parquet(label=[0.5], a=[1], b=[1]), ("label column 'label' must be text or integers, not double",)),
        (parquet(label=[0, None], a=[1, 1], b=[1, 1]), ("row 2, column 'label' is empty",)),
        (parquet(label=[0, 1], a=[1, 1], b=[1.5, None]), ("row 2, column 'b' is empty", "nan")),
        (parquet(label=["cat", "emu"], a=[1, 1], b=[1, 1]), ("the label of row 2 is none",)),
        (parquet(label=[0, 7], a=[1, 1], b=[1, 1]), ("the label of row 2 is none",)),
        (lambda path: path.write_bytes(b"PAR1"), ("cannot be read as a Parquet file",)),
        (lambda path: path.write_bytes(b""), ("cannot be read as a Parquet file",)),
    ],
)
def test_unfit_parquet_files(tmp_path: Path, write: Callable[[Path], None], fragments: tuple[str, ...]) -> None:
    write(tmp_path / "t.parquet")
    refused(tmp_path, "parquet", "t.parquet", str(tmp_path / "t.parquet"), *fragments, shape=(2,))


@pytest.mark.parametrize(
    ("images", "fragments"),
    [
        ([png(), png(3, 2)], ("row 2", "3 x 2 pixels")),
        ([png(), png()[:45]], ("row 2", "not a readable PNG")),
        ([png(), None], ("row 2 has no image bytes in column 'image'",)),
        ([{"bytes": png(), "path": "a"}, {"bytes": None, "path": "b"}], ("row 2 has no image bytes",)),
        (["a.png", "b.png"], ("must hold encoded images", "not string")),
        ([{"path": "a"}, {"path": "b"}], ("must hold encoded images", "not struct")),
    ],
)
def test_unfit_images_in_parquet(tmp_path: Path, images: list[Any], fragments: tuple[str, ...]) -> None:
    parquet(label=[0, 1], image=images)(tmp_path / "t.parquet")
    refused(tmp_path, "parquet", "t.parquet", str(tmp_path / "t.parquet"), *fragments, image_column="image")


def test_a_parquet_bomb_is_refused_before_it_unpacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "SMALL", 100_000)
    parquet(label=np.zeros(500_000, np.int64), a=np.zeros(500_000), b=np.zeros(500_000))(tmp_path / "t.parquet")
    refused(tmp_path, "parquet", "t.parquet", "unpacks to", shape=(2,))


def test_a_parquet_file_that_names_a_column_twice(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([0]), pa.array([1]), pa.array([1])], names=["label", "a", "a"])
    pq.write_table(table, tmp_path / "t.parquet")
    refused(tmp_path, "parquet", "t.parquet", "the column 'a' more than once", shape=(2,))
