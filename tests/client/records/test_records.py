"""Private records: every format gives the same arrays, nothing private shows, damage gives a `DataError`."""

from __future__ import annotations

import copy
import csv
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from pydantic import ValidationError

from dpdd.client.records import DataSpec, Records, describe, load
from dpdd.common.errors import DataError
from dpdd.common.files import idx

CLASSES = ("cat", "dog", "emu")


def sample(channels: int = 1, count: int = 7, height: int = 4, width: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Random images with rising labels; the class "emu" stays empty."""
    images = np.random.default_rng(0).integers(0, 256, (count, channels, height, width), dtype=np.uint8)
    return images, np.array([0] * (count // 2) + [1] * (count - count // 2), dtype=np.int64)


def picture(image: np.ndarray, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)).save(out, kind)
    return out.getvalue()


def spec(form: str, path: str, shape: tuple[int, ...] = (1, 4, 5), **more: Any) -> DataSpec:
    return DataSpec(format=form, path=path, classes=CLASSES, shape=shape, **more)  # type: ignore[arg-type]


def write_csv(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def write_all(base: Path, images: np.ndarray, labels: np.ndarray) -> dict[str, DataSpec]:
    """Write the records in every way there is, and return a spec for each."""
    shape = images.shape[1:]
    names = [CLASSES[label] for label in labels]
    flat = images.reshape(len(images), int(np.prod(shape)))
    header = [f"pixel{number}" for number in range(flat.shape[1])]
    specs: dict[str, DataSpec] = {}
    for kind in ("png", "bmp"):
        (base / kind / "emu").mkdir(parents=True)
        for row, (image, name) in enumerate(zip(images, names, strict=True)):
            (base / kind / name).mkdir(parents=True, exist_ok=True)
            (base / kind / name / f"{row:04}.{kind}").write_bytes(picture(image, kind.upper()))
        specs[f"folder of {kind}"] = spec("image-folder", kind, shape)

    write_csv(base / "pixels.csv", ["label", *header], [[n, *r] for n, r in zip(names, flat.tolist(), strict=True)])
    specs["csv of pixels"] = spec("csv", "pixels.csv", shape)
    files = [f"png/{name}/{row:04}.png" for row, name in enumerate(names)]
    write_csv(base / "files.csv", ["id", "file", "y"], [[7, f, la] for f, la in zip(files, labels, strict=True)])
    specs["csv of files"] = spec("csv", "files.csv", shape, image_column="file", label_column="y")

    columns = {"label": labels, **dict(zip(header, flat.T, strict=True))}
    pq.write_table(pa.table(columns), base / "pixels.parquet")
    specs["parquet of pixels"] = spec("parquet", "pixels.parquet", shape)
    encoded = [picture(image) for image in images]
    dictionary = pa.array(names, pa.string()).dictionary_encode()
    pq.write_table(pa.table({"image": pa.array(encoded, pa.binary()), "label": dictionary}), base / "bytes.parquet")
    specs["parquet of bytes"] = spec("parquet", "bytes.parquet", shape, image_column="image")
    struct = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    structs = pa.array([{"bytes": data, "path": None} for data in encoded], struct)
    pq.write_table(pa.table({"image": structs, "label": labels}), base / "structs.parquet")
    specs["parquet of structs"] = spec("parquet", "structs.parquet", shape, image_column="image")

    np.savez(base / "first.npz", images=images, labels=labels)
    specs["npz, channels first"] = spec("npz", "first.npz", shape)
    np.savez_compressed(base / "last.npz", x=images.transpose(0, 2, 3, 1), y=np.array(names, dtype=str)[:, None])
    specs["npz, channels last"] = spec("npz", "last.npz", shape, images_key="x", labels_key="y")
    np.savez(base / "float.npz", images=(images / 255).astype(np.float64), labels=labels)
    specs["npz of floats"] = spec("npz", "float.npz", shape, value_range=(0, 1))
    if shape[0] == 1:
        np.savez(base / "flat.npz", images=images[:, 0], labels=np.array(names, dtype="S"))
        specs["npz without channels"] = spec("npz", "flat.npz", shape)
        for suffix in ("", ".gz"):
            idx.write(base / f"images{suffix}", images[:, 0])
            idx.write(base / f"labels{suffix}", labels.astype(np.uint8))
            specs[f"idx{suffix}"] = spec("idx", f"images{suffix}", shape, labels=f"labels{suffix}")
    return specs


# Formats agree


@pytest.mark.parametrize("channels", [1, 3])
def test_every_format_gives_the_same_records(tmp_path: Path, channels: int) -> None:
    images, labels = sample(channels)
    specs = write_all(tmp_path, images, labels)
    assert len(specs) == (13 if channels == 1 else 10)
    for name, declared in specs.items():
        records = load(declared, tmp_path)
        assert np.array_equal(records.labels, labels), name
        [(batch, batch_labels)] = records.batches(100)
        assert np.array_equal(batch, images.astype(np.float32) / np.float32(255)), name
        assert np.array_equal(batch_labels, labels), name
        if name != "npz of floats":
            assert records.features.dtype == np.uint8 and np.array_equal(records.features, images), name


@pytest.mark.parametrize("ending", ["", "\n", "\r\n\n\n"])
def test_a_source_without_records_is_legal_in_every_format(tmp_path: Path, ending: str) -> None:
    # It is the neighbour of a source with one record, so it must load alike.
    specs = write_all(tmp_path, *sample(1, count=0))
    for name in ("pixels.csv", "files.csv"):
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes().rstrip() + ending.encode())
    for name, declared in specs.items():
        records = load(declared, tmp_path)
        assert len(records) == 0 and records.features.shape == (0, 1, 4, 5), name
        description = describe(records, declared)
        assert (
            description.count == 0
            and description.per_class == {"cat": 0, "dog": 0, "emu": 0}
            and description.minimum is None
        )


def table_files(base: Path, values: np.ndarray, labels: np.ndarray) -> list[DataSpec]:
    header = [f"f{number}" for number in range(values.shape[1])]
    rows = [[*row, CLASSES[label]] for row, label in zip(values.tolist(), labels, strict=True)]
    write_csv(base / "t.csv", [*header, "label"], rows)
    pq.write_table(pa.table({**dict(zip(header, values.T, strict=True)), "label": labels}), base / "t.parquet")
    np.savez(base / "t.npz", images=values, labels=labels)
    return [spec(form, f"t.{form}", (values.shape[1],)) for form in ("csv", "parquet", "npz")]


def test_tables_agree_and_keep_what_is_not_finite(tmp_path: Path) -> None:
    values = np.array([[1.5, -1e6, 3], [np.nan, 2, np.inf], [0.1, -np.inf, 1e-30]])
    for declared in table_files(tmp_path, values, np.array([2, 0, 1])):
        records = load(declared, tmp_path)
        assert records.is_table and records.features.dtype == np.float32
        assert np.array_equal(records.features, values.astype(np.float32), equal_nan=True)
        assert records.labels.tolist() == [2, 0, 1]


def test_pixels_are_mapped_from_their_range_and_non_finite_ones_pass(tmp_path: Path) -> None:
    values = np.array([[-1.0, 1.0, 0.0, np.nan], [np.inf, -np.inf, 0.5, -0.5]])
    expected = np.array([[0, 1, 0.5, np.nan], [np.inf, -np.inf, 0.75, 0.25]], dtype=np.float32)
    for table in table_files(tmp_path, values, np.array([0, 1])):
        path = "t." + table.format
        np.savez(tmp_path / "t.npz", images=values.reshape(2, 1, 2, 2), labels=np.array([0, 1]))
        records = load(spec(table.format, path, (1, 2, 2), value_range=(-1, 1)), tmp_path)
        assert records.features.dtype == np.float32
        assert np.array_equal(records.features.reshape(2, 4), expected, equal_nan=True)


def test_one_missing_pixel_does_not_change_the_others(tmp_path: Path) -> None:
    values = np.full((3000, 4), 51.0)
    values[2500, 1] = np.nan
    for table in table_files(tmp_path, values, np.zeros(3000, dtype=np.int64))[:2]:
        records = load(spec(table.format, f"t.{table.format}", (1, 2, 2)), tmp_path)
        features = records.features.reshape(3000, 4)
        assert features.dtype == np.float32 and np.isnan(features[2500, 1])
        assert np.isnan(features).sum() == 1 and set(np.unique(features[:2500])) == {np.float32(51) / np.float32(255)}


def test_a_range_bound_rounded_to_32_bits_is_inside(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.full((1, 1, 1), 0.1, dtype=np.float32), labels=[0])
    records = load(spec("npz", "a.npz", (1, 1, 1), value_range=(0, 0.1)), tmp_path)
    assert records.features.item() == 1.0


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
@pytest.mark.parametrize("channels", [1, 3])
def test_colour_modes_follow_the_declared_channels(tmp_path: Path, mode: str, channels: int) -> None:
    (tmp_path / "f" / "cat").mkdir(parents=True)
    Image.new("L", (3, 2), 255).convert("RGB").convert(mode).save(tmp_path / "f" / "cat" / "a.png")
    records = load(spec("image-folder", "f", (channels, 2, 3)), tmp_path)
    assert records.features.shape == (1, channels, 2, 3) and (records.features == 255).all()


@pytest.mark.parametrize("kind", ["JPEG", "GIF", "WEBP"])
def test_other_image_files(tmp_path: Path, kind: str) -> None:
    (tmp_path / "f" / "dog").mkdir(parents=True)
    (tmp_path / "f" / "dog" / f"a.{kind.lower()}").write_bytes(picture(np.full((1, 8, 8), 90, dtype=np.uint8), kind))
    records = load(spec("image-folder", "f", (1, 8, 8)), tmp_path)
    assert abs(int(records.features.max()) - 90) < 3 and records.labels.tolist() == [1]


def test_an_image_folder_passes_over_droppings_and_takes_positions_as_names(tmp_path: Path) -> None:
    for name in ("0", "cat", "dog"):
        (tmp_path / "f" / name).mkdir(parents=True)
    image = picture(np.zeros((1, 2, 2), dtype=np.uint8))
    (tmp_path / "f" / "0" / "b.png").write_bytes(image)
    (tmp_path / "f" / "cat" / "a.PNG").write_bytes(image)
    for dropping in ("f/.DS_Store", "f/readme.txt", "f/cat/.hidden.png", "f/cat/Thumbs.db"):
        (tmp_path / dropping).write_bytes(b"x")
    assert load(spec("image-folder", "f", (1, 2, 2)), tmp_path).labels.tolist() == [0, 0]


def test_an_image_folder_comes_class_by_class_then_by_file_name(tmp_path: Path) -> None:
    for shade, name in enumerate(("zebra/b.png", "ant/c.png", "ant/a.png", "zebra/a.png")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(picture(np.full((1, 1, 1), shade, dtype=np.uint8)))
    records = load(DataSpec(format="image-folder", path=".", classes=("zebra", "ant"), shape=(1, 1, 1)), tmp_path)
    assert records.features.ravel().tolist() == [3, 0, 2, 1] and records.labels.tolist() == [0, 0, 1, 1]


def test_digits_as_class_names_are_names_in_every_format(tmp_path: Path) -> None:
    for table in table_files(tmp_path, np.zeros((2, 1)), np.array([2, 1])):
        write_csv(tmp_path / "t.csv", ["f0", "label"], [[0, "2"], [0, "1"]])
        declared = DataSpec(format=table.format, path=table.path, classes=("1", "2"), shape=(1,))
        assert load(declared, tmp_path).labels.tolist() == [1, 0]


def test_a_csv_with_a_mark_quotes_and_blank_lines(tmp_path: Path) -> None:
    text = '\ufeff"label",a,"b,c"\r\n"cat", 1 ,2\r\n\r\ndog,3,-4.5e1\r\n'
    (tmp_path / "t.csv").write_bytes(text.encode())
    records = load(spec("csv", "t.csv", (2,)), tmp_path)
    assert records.features.tolist() == [[1, 2], [3, -45]] and records.labels.tolist() == [0, 1]


def test_a_csv_of_many_blocks_keeps_its_rows_in_order(tmp_path: Path) -> None:
    values = np.random.default_rng(1).integers(0, 256, (6000, 785))
    values[:, 0] %= 3
    header = ",".join(["label", *(f"p{number}" for number in range(784))])
    body = "\n".join(",".join(map(str, row)) for row in values.tolist())
    (tmp_path / "big.csv").write_text(f"{header}\n{body}")
    assert (tmp_path / "big.csv").stat().st_size > 3 * (1 << 22)
    records = load(spec("csv", "big.csv", (1, 28, 28)), tmp_path)
    assert np.array_equal(records.features.reshape(6000, 784), values[:, 1:])
    assert np.array_equal(records.labels, values[:, 0])


# Records keep to themselves


def private() -> Records:
    images, labels = sample(1)
    return Records(images, labels)


def test_records_show_nothing() -> None:
    assert repr(private()) == str(private()) == f"{private()}" == "Records(private)"
    assert repr(private()) == repr(private().take([0]))


def test_records_are_not_pickled_or_copied() -> None:
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="private records"):
            leak(private())


def test_records_are_read_only_but_batches_are_not() -> None:
    records = private()
    with pytest.raises(ValueError):
        records.features[0] = 0
    with pytest.raises(ValueError):
        records.labels[0] = 0
    floats = Records(np.ones((2, 3), dtype=np.float32), np.array([0, 1]))
    for batch, labels in floats.batches(2):
        batch[:] = 0
        labels[:] = 0
    assert floats.features.all() and floats.labels.tolist() == [0, 1]


def test_batches_and_take() -> None:
    records = private()
    assert [len(labels) for _, labels in records.batches(3)] == [3, 3, 1]
    assert all(batch.dtype == np.float32 and batch.max() <= 1 for batch, _ in records.batches(3))
    assert np.array_equal(records.take(records.labels == 1).features, records.features[3:])
    assert records.take([6, 0]).labels.tolist() == [1, 0]
    assert len(records.take([])) == 0 and list(records.take([]).batches(4)) == []
    with pytest.raises(ValueError, match="at least 1"):
        list(records.batches(0))
    for wrong in ([[0]], [0.5], 3):
        with pytest.raises(ValueError, match="positions or a boolean mask"):
            records.take(wrong)


@pytest.mark.parametrize(
    ("features", "labels"),
    [
        (np.zeros((2, 3)), np.zeros(2, dtype=np.int64)),
        (np.zeros((2, 3), dtype=np.uint8), np.zeros(2, dtype=np.int64)),
        (np.zeros((2, 3), dtype=np.float32), np.zeros(2, dtype=np.int32)),
        (np.zeros((2, 3), dtype=np.float32), np.zeros((2, 1), dtype=np.int64)),
        (np.zeros((2, 3), dtype=np.float32), np.zeros(3, dtype=np.int64)),
    ],
)
def test_records_check_their_parts(features: np.ndarray, labels: np.ndarray) -> None:
    with pytest.raises(DataError, match="must be"):
        Records(features, labels)


def test_describe(tmp_path: Path) -> None:
    values = np.array([[1, np.nan], [np.inf, np.nan], [-5, 4]])
    declared = table_files(tmp_path, values, np.array([0, 2, 2]))[0]
    description = describe(load(declared, tmp_path), declared)
    assert (description.count, description.non_finite, description.minimum, description.maximum) == (3, 2, -5, 4)
    assert description.per_class == {"cat": 1, "dog": 0, "emu": 2} and description.shape == (2,)
    images = describe(Records(np.full((1, 1, 2, 2), 255, dtype=np.uint8), np.array([1])), spec("npz", "x", (1, 2, 2)))
    assert (images.minimum, images.maximum) == (1, 1)
    empty = describe(Records(np.full((1, 1), np.nan, dtype=np.float32), np.array([1])), spec("npz", "x", (1,)))
    assert (empty.minimum, empty.maximum, empty.non_finite) == (None, None, 1)


# Declarations


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"format": "zip"}, "image-folder"),
        ({"classes": ("cat",)}, "at least two"),
        ({"classes": ("cat", "dog", "cat")}, "'cat' is there twice"),
        ({"classes": ("cat", " dog")}, "without spaces at its ends"),
        ({"classes": ("cat", "d\nog")}, "printable"),
        ({"shape": (2, 4)}, "three numbers"),
        ({"shape": (2, 4, 4)}, "1 channel"),
        ({"shape": (1, 0, 4)}, "greater than or equal to 1"),
        ({"shape": (1, 4, 100_000)}, "less than or equal to 4096"),
        ({"shape": (True, 4, 4)}, "valid integer"),
        ({"value_range": (1, 0)}, "smaller one first"),
        ({"value_range": (0, float("inf"))}, "finite"),
        ({"format": "idx"}, "needs labels"),
        ({"format": "idx", "labels": "y", "shape": (3, 4, 5)}, "grey"),
        ({"format": "idx", "labels": "y", "shape": (5,)}, "grey"),
        ({"labels": "y"}, "labels is for format 'idx' only"),
        ({"format": "image-folder", "shape": (5,)}, "holds images"),
        ({"format": "csv", "shape": (5,), "image_column": "i"}, "image_column is for images"),
        ({"format": "csv", "image_column": "label"}, "must differ"),
        ({"image_column": "i"}, "is for format 'csv' or 'parquet'"),
        ({"format": "csv", "images_key": "x"}, "is for format 'npz'"),
        ({"format": "image-folder", "value_range": (0, 1)}, "always run from 0 to 255"),
        ({"colour": "blue"}, "Extra inputs"),
    ],
)
def test_declarations_that_cannot_be(change: dict[str, object], fragment: str) -> None:
    settings = {"format": "npz", "path": "x", "classes": CLASSES, "shape": (1, 4, 5), **change}
    with pytest.raises(ValidationError) as caught:
        DataSpec(**settings)  # type: ignore[arg-type]
    assert fragment in str(caught.value)


def test_declarations_do_not_change() -> None:
    with pytest.raises(ValidationError):
        spec("npz", "x").path = Path("y")  # type: ignore[misc]


# Damage

SOURCES = {
    "folder of png": "png/cat/0000.png",
    "folder of bmp": "bmp/cat/0000.bmp",
    "idx": "images",
    "idx.gz": "images.gz",
    "csv of pixels": "pixels.csv",
    "csv of files": "files.csv",
    "parquet of pixels": "pixels.parquet",
    "parquet of bytes": "bytes.parquet",
    "parquet of structs": "structs.parquet",
    "npz, channels first": "first.npz",
    "npz, channels last": "last.npz",
    "npz without channels": "flat.npz",
}


@pytest.mark.parametrize("name", SOURCES)
@given(
    keep=st.one_of(st.none(), st.floats(0, 1)),
    changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255), st.booleans()), max_size=5),
)
@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_damaged_files_only_ever_give_data_errors(
    tmp_path: Path, name: str, keep: float | None, changes: list[tuple[float, int, bool]]
) -> None:
    source, good = tmp_path / SOURCES[name], tmp_path / "undamaged"
    if not good.exists():  # hypothesis runs all examples in one folder
        write_all(tmp_path, *sample(1))
        source.rename(good)
    declared = spec_of(name)
    data = bytearray(good.read_bytes())
    if keep is not None:
        del data[int(keep * len(data)) :]
    for place, value, insert in changes:
        at = int(place * len(data))
        data[at : at + (0 if insert else 1)] = bytes([value])
    source.write_bytes(data)
    try:
        records = load(declared, tmp_path)
    except DataError as error:
        assert "\n" not in str(error) and str(tmp_path) in str(error)
    else:
        assert records.features.shape[1:] == (1, 4, 5)
        assert set(records.labels.tolist()) <= {0, 1, 2}


def spec_of(name: str) -> DataSpec:
    more: dict[str, dict[str, str]] = {
        "csv of files": {"image_column": "file", "label_column": "y"},
        "parquet of bytes": {"image_column": "image"},
        "parquet of structs": {"image_column": "image"},
        "npz, channels last": {"images_key": "x", "labels_key": "y"},
        "idx": {"labels": "labels"},
        "idx.gz": {"labels": "labels.gz"},
    }
    form = {"folder": "image-folder", "npz,": "npz", "idx.gz": "idx"}.get(name.split()[0], name.split()[0])
    path = SOURCES[name].split("/")[0]
    return spec(form, path, **more.get(name, {}))
