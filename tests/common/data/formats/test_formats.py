"""Every format gives the same records, whenever and in whatever order they are read; damage gives a `DataError`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from pydantic import ValidationError

from dpdd.common.data.formats import DataSpec, load
from dpdd.common.data.labelled_records import as_float
from dpdd.common.errors import DataError
from tests.common.data.formats.samples import CLASSES, picture, sample, spec, table_files, write_all, write_csv

# Formats agree


@pytest.mark.parametrize("channels", [1, 3])
def test_every_format_gives_the_same_records(tmp_path: Path, channels: int) -> None:
    images, labels = sample(channels)
    specs = write_all(tmp_path, images, labels)
    assert len(specs) == (13 if channels == 1 else 10)
    for name, declared in specs.items():
        records = load(declared, tmp_path)
        assert np.array_equal(records.labels, labels), name
        features = records.features
        assert features.shape == (7, *images.shape[1:]) and features.ndim == 4 and len(features) == 7
        assert features.dtype == (np.float32 if name in ("npz of floats", "csv of pixels") else np.uint8), name
        whole = images.astype(np.float32) / np.float32(255)
        assert np.array_equal(as_float(features[:]), whole), name
        for chosen in ([6, 0, 3, 3, 4], [2], [], list(range(7))[::-1]):
            read = features[np.array(chosen, dtype=np.int64)]
            assert read.dtype == features.dtype and np.array_equal(as_float(read), whole[chosen]), (name, chosen)
        assert np.array_equal(as_float(features[2:5]), whole[2:5]) and len(features[5:100]) == 2
        for wrong in ([7], [-1], [[0]], [0.5]):
            with pytest.raises(IndexError):
                features[np.array(wrong)]


@pytest.mark.parametrize("ending", ["", "\n", "\r\n\n\n"])
def test_a_source_without_records_is_legal_in_every_format(tmp_path: Path, ending: str) -> None:
    # It is the neighbour of a source with one record, so it must load alike.
    specs = write_all(tmp_path, *sample(1, count=0))
    for name in ("pixels.csv", "files.csv"):
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes().rstrip() + ending.encode())
    for name, declared in specs.items():
        records = load(declared, tmp_path)
        assert len(records) == 0 and records.features.shape == (0, 1, 4, 5), name
        assert records.features[:].shape == (0, 1, 4, 5) and records.labels.dtype == np.int64, name


def test_tables_agree_and_keep_what_is_not_finite(tmp_path: Path) -> None:
    values = np.array([[1.5, -1e6, 3], [np.nan, 2, np.inf], [0.1, -np.inf, 1e-30]])
    for declared in table_files(tmp_path, values, np.array([2, 0, 1])):
        records = load(declared, tmp_path)
        assert records.features.ndim == 2 and records.features.dtype == np.float32
        assert np.array_equal(records.features[:], values.astype(np.float32), equal_nan=True)
        assert records.labels.tolist() == [2, 0, 1]


def test_pixels_are_mapped_from_their_range_and_non_finite_ones_pass(tmp_path: Path) -> None:
    values = np.array([[-1.0, 1.0, 0.0, np.nan], [np.inf, -np.inf, 0.5, -0.5]])
    expected = np.array([[0, 1, 0.5, np.nan], [np.inf, -np.inf, 0.75, 0.25]], dtype=np.float32)
    for table in table_files(tmp_path, values, np.array([0, 1])):
        path = "t." + table.format
        np.savez(tmp_path / "t.npz", images=values.reshape(2, 1, 2, 2), labels=np.array([0, 1]))
        records = load(spec(table.format, path, (1, 2, 2), value_range=(-1, 1)), tmp_path)
        assert records.features.dtype == np.float32
        assert np.array_equal(records.features[:].reshape(2, 4), expected, equal_nan=True)


def test_one_missing_pixel_does_not_change_the_others(tmp_path: Path) -> None:
    values = np.full((3000, 4), 51.0)
    values[2500, 1] = np.nan
    for table in table_files(tmp_path, values, np.zeros(3000, dtype=np.int64))[:2]:
        records = load(spec(table.format, f"t.{table.format}", (1, 2, 2)), tmp_path)
        features = records.features[:].reshape(3000, 4)
        assert features.dtype == np.float32 and np.isnan(features[2500, 1])
        assert np.isnan(features).sum() == 1 and set(np.unique(features[:2500])) == {np.float32(51) / np.float32(255)}


def test_a_range_bound_rounded_to_32_bits_is_inside(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.full((1, 1, 1), 0.1, dtype=np.float32), labels=[0])
    records = load(spec("npz", "a.npz", (1, 1, 1), value_range=(0, 0.1)), tmp_path)
    assert records.features[:].item() == 1.0


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
@pytest.mark.parametrize("channels", [1, 3])
def test_colour_modes_follow_the_declared_channels(tmp_path: Path, mode: str, channels: int) -> None:
    (tmp_path / "f" / "cat").mkdir(parents=True)
    Image.new("L", (3, 2), 255).convert("RGB").convert(mode).save(tmp_path / "f" / "cat" / "a.png")
    records = load(spec("image-folder", "f", (channels, 2, 3)), tmp_path)
    assert records.features.shape == (1, channels, 2, 3) and (records.features[:] == 255).all()


@pytest.mark.parametrize("kind", ["JPEG", "GIF", "WEBP"])
def test_other_image_files(tmp_path: Path, kind: str) -> None:
    (tmp_path / "f" / "dog").mkdir(parents=True)
    (tmp_path / "f" / "dog" / f"a.{kind.lower()}").write_bytes(picture(np.full((1, 8, 8), 90, dtype=np.uint8), kind))
    records = load(spec("image-folder", "f", (1, 8, 8)), tmp_path)
    assert abs(int(records.features[:].max()) - 90) < 3 and records.labels.tolist() == [1]


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
    assert records.features[:].ravel().tolist() == [3, 0, 2, 1] and records.labels.tolist() == [0, 0, 1, 1]


def test_digits_as_class_names_are_names_in_every_format(tmp_path: Path) -> None:
    for table in table_files(tmp_path, np.zeros((2, 1)), np.array([2, 1])):
        write_csv(tmp_path / "t.csv", ["f0", "label"], [[0, "2"], [0, "1"]])
        declared = DataSpec(format=table.format, path=table.path, classes=("1", "2"), shape=(1,))
        assert load(declared, tmp_path).labels.tolist() == [1, 0]


def test_a_csv_with_a_mark_quotes_and_blank_lines(tmp_path: Path) -> None:
    text = '\ufeff"label",a,"b,c"\r\n"cat", 1 ,2\r\n\r\ndog,3,-4.5e1\r\n'
    (tmp_path / "t.csv").write_bytes(text.encode())
    records = load(spec("csv", "t.csv", (2,)), tmp_path)
    assert records.features[:].tolist() == [[1, 2], [3, -45]] and records.labels.tolist() == [0, 1]


def test_a_csv_of_many_blocks_keeps_its_rows_in_order(tmp_path: Path) -> None:
    values = np.random.default_rng(1).integers(0, 256, (6000, 785))
    values[:, 0] %= 3
    header = ",".join(["label", *(f"p{number}" for number in range(784))])
    body = "\n".join(",".join(map(str, row)) for row in values.tolist())
    (tmp_path / "big.csv").write_text(f"{header}\n{body}")
    assert (tmp_path / "big.csv").stat().st_size > 3 * (1 << 22)
    records = load(spec("csv", "big.csv", (1, 28, 28)), tmp_path)
    assert np.array_equal(records.features[:].reshape(6000, 784), values[:, 1:].astype(np.float32) / np.float32(255))
    assert np.array_equal(records.labels, values[:, 0])


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
        ({"format": "idx", "labels": "y", "value_range": (0, 1)}, "always run from 0 to 255"),
        ({"shape": (5,), "fit": "resize"}, "fit is for images"),
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
        features = records.features[:]
    except DataError as error:
        assert "\n" not in str(error) and str(tmp_path) in str(error)
    else:
        assert features.shape == (len(records), 1, 4, 5)
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
