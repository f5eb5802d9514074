"""Features that stay on disk: row groups of Parquet, arrays of an NPZ, gzipped IDX; bounded, and the same records."""

from __future__ import annotations

import gzip
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpdd.common.data.features import LazyFeatures
from dpdd.common.data.formats import encoded_images, load, parquet_table
from dpdd.common.data.labelled_records import LabelledRecords
from dpdd.common.errors import DataError
from dpdd.common.files import idx
from tests.common.data.formats.samples import picture, sample, spec

IMAGES, LABELS = sample(1, count=50)


def read_everywhere(read: LabelledRecords, expected: np.ndarray) -> None:
    """All at once, backwards, at random, in pieces."""
    features = read.features
    assert np.array_equal(features[:], expected)
    for order in (np.arange(len(expected))[::-1], np.random.default_rng(1).permutation(len(expected))):
        assert np.array_equal(features[order], expected[order])
    for start in range(0, len(expected), 7):
        assert np.array_equal(features[start : start + 7], expected[start : start + 7])


# Parquet


@pytest.mark.parametrize("most_bytes", [100, 1000, 1 << 25])
@pytest.mark.parametrize("group", [1, 8, 50, 1000])
def test_row_groups_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: int, most_bytes: int) -> None:
    monkeypatch.setattr(parquet_table, "MOST_BYTES", most_bytes)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    flat = IMAGES.reshape(50, -1)
    columns = {f"p{at}": flat[:, at] for at in range(flat.shape[1])}
    pq.write_table(pa.table({"label": LABELS, **columns}), tmp_path / "pixels.parquet", row_group_size=group)
    encoded = pa.array([{"bytes": picture(image), "path": None} for image in IMAGES])
    table = pa.table({"image": encoded, "more": ["x" * 100] * 50, "label": LABELS})
    pq.write_table(table, tmp_path / "images.parquet", row_group_size=group)
    for path, more in (("pixels.parquet", {}), ("images.parquet", {"image_column": "image"})):
        read = load(spec("parquet", path, **more), tmp_path)
        assert read.features.dtype == np.uint8
        read_everywhere(read, IMAGES)
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_row_group_is_read_once_for_batches_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = pa.array([picture(image) for image in IMAGES], pa.binary())
    pq.write_table(pa.table({"label": LABELS, "image": encoded}), tmp_path / "t.parquet", row_group_size=10)
    read = load(spec("parquet", "t.parquet", image_column="image"), tmp_path)
    groups: list[int] = []
    real = pq.ParquetFile.read_row_group
    monkeypatch.setattr(
        pq.ParquetFile, "read_row_group", lambda self, at, **more: groups.append(at) or real(self, at, **more)
    )
    for start in range(0, 50, 4):
        read.features[start : start + 4]
    assert groups == [0, 1, 2, 3, 4]
    read.features[np.array([49, 1, 48, 2])]
    assert groups[5:] == [0], "the last two are kept, and a group that is asked for twice is read once"


def test_large_row_groups_are_never_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_table, "MOST_IMAGES", 8)
    encoded = pa.array([picture(image) for image in IMAGES], pa.binary())
    pq.write_table(pa.table({"label": LABELS, "image": encoded}), tmp_path / "t.parquet")
    rows: list[int] = []
    real = pq.ParquetFile.read_row_group

    def read_row_group(self: Any, at: int, **more: Any) -> Any:
        table = real(self, at, **more)
        rows.append(table.num_rows)
        return table

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", read_row_group)
    read_everywhere(load(spec("parquet", "t.parquet", image_column="image"), tmp_path), IMAGES)
    assert max(rows) == 8


# NPZ and IDX


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("dtype", ["uint8", "<u2", ">u2", "<f4", ">f8", "float16"])
def test_arrays_in_any_order_and_packing(tmp_path: Path, save: Any, dtype: str, order: Any) -> None:
    values = (IMAGES % 2).astype(dtype)
    for name, array in (("first", values), ("last", values.transpose(0, 2, 3, 1)), ("none", values[:, 0])):
        save(tmp_path / f"{name}.npz", images=np.asarray(array, order=order), labels=LABELS)
        read = load(spec("npz", f"{name}.npz", value_range=(0, 1)), tmp_path)
        assert read.features.dtype == np.float32
        read_everywhere(read, (IMAGES % 2).astype(np.float32))


def test_a_damaged_array_is_noticed_by_its_checksum(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 1, 200, 200), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=[0, 1])
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[data.index(images.tobytes()) + 70_000] ^= 1
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(DataError, match="BadZipFile"):
        load(spec("npz", "a.npz", (1, 200, 200)), tmp_path)


@pytest.mark.parametrize("change", ["cut", "more", "flipped"])
def test_a_damaged_gzipped_idx_is_noticed_when_it_is_opened(tmp_path: Path, change: str) -> None:
    idx.write(tmp_path / "x", IMAGES[:, 0])
    idx.write(tmp_path / "y", LABELS.astype(np.uint8))
    plain = (tmp_path / "x").read_bytes()
    packed = bytearray(gzip.compress(plain[:-1] if change == "cut" else plain + b"x" * (change == "more"), mtime=0))
    if change == "flipped":
        packed[-6] ^= 1  # of the checksum
    (tmp_path / "x.gz").write_bytes(packed)
    with pytest.raises(DataError, match=r"x\.gz"):
        load(spec("idx", "x.gz", labels="y"), tmp_path)


# Memory


def peak_of_a_pass(features: Any) -> int:
    """What reading all records, a few at a time, takes at most."""
    tracemalloc.start()
    for start in range(0, len(features), 16):
        features[start : start + 16]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("name", ["folder", "npz", "compressed", "idx.gz", "parquet", "csv"])
def test_a_pass_holds_few_records_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(parquet_table, "MOST_IMAGES", 16)
    images = np.random.default_rng(0).integers(0, 256, (600, 1, 64, 64), dtype=np.uint8)
    labels, flat = np.zeros(600, np.int64), images.reshape(600, -1)
    declared: dict[str, Any] = {"shape": (1, 64, 64)}
    if name == "folder":
        (tmp_path / "f" / "cat").mkdir(parents=True)
        for row, image in enumerate(images):
            (tmp_path / "f" / "cat" / f"{row}.bmp").write_bytes(picture(image, "BMP"))
        read = load(spec("image-folder", "f", **declared), tmp_path)
    elif name == "idx.gz":
        idx.write(tmp_path / "x.gz", images[:, 0])
        idx.write(tmp_path / "y", labels.astype(np.uint8))
        read = load(spec("idx", "x.gz", labels="y", **declared), tmp_path)
    elif name == "parquet":
        encoded = pa.array([picture(image, "BMP") for image in images], pa.binary())
        pq.write_table(pa.table({"label": labels, "image": encoded}), tmp_path / "t.parquet")
        read = load(spec("parquet", "t.parquet", image_column="image", **declared), tmp_path)
    elif name == "csv":
        header = ",".join(["label", *(f"p{at}" for at in range(64 * 64))])
        lines = [",".join(map(str, [0, *row])) for row in flat.tolist()]
        (tmp_path / "t.csv").write_text("\n".join([header, *lines]))
        read = load(spec("csv", "t.csv", **declared), tmp_path)
    else:
        (np.savez if name == "npz" else np.savez_compressed)(tmp_path / "a.npz", images=images, labels=labels)
        read = load(spec("npz", "a.npz", **declared), tmp_path)
    whole = images.nbytes * read.features.dtype.itemsize
    assert peak_of_a_pass(read.features) < whole / 3


# Decoding on all cores


def test_images_are_decoded_by_several_threads_that_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoded_images, "cores", lambda: 3)
    (tmp_path / "f" / "cat").mkdir(parents=True)
    for row, image in enumerate(IMAGES):
        (tmp_path / "f" / "cat" / f"{row:02}.png").write_bytes(picture(image))
    together = threading.Barrier(3, timeout=30)
    real, first = encoded_images.decode, set[str]()

    def decode(*arguments: Any) -> Any:
        name = threading.current_thread().name
        if name not in first:  # each thread waits until there are three of them
            first.add(name)
            together.wait()
        return real(*arguments)

    features = load(spec("image-folder", "f"), tmp_path).features
    monkeypatch.setattr(encoded_images, "decode", decode)
    assert np.array_equal(features[:], IMAGES)
    assert len(first) == 3 and not [each for each in threading.enumerate() if each.name.startswith("dpdd-")]


def test_of_several_damaged_images_the_first_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoded_images, "cores", lambda: 4)
    (tmp_path / "f" / "cat").mkdir(parents=True)
    for row, image in enumerate(IMAGES):
        data = picture(image)
        (tmp_path / "f" / "cat" / f"{row:02}.png").write_bytes(data if row % 20 != 11 else data[:40])
    features = load(spec("image-folder", "f"), tmp_path).features
    for _ in range(5):
        with pytest.raises(DataError, match=r"11\.png"):
            features[:]
        with pytest.raises(DataError, match=r"31\.png"):
            features[np.arange(49, 11, -1)][:0]
    assert np.array_equal(features[np.array([0, 10, 12])], IMAGES[[0, 10, 12]])


def test_large_reads_are_converted_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Counted(LazyFeatures):
        def rows(self, positions: np.ndarray) -> np.ndarray:
            asked.append(len(positions))
            return positions.astype(np.float32)[:, None]

    monkeypatch.setattr("dpdd.common.data.features.MOST_BYTES_AT_ONCE", 80)
    assert np.array_equal(Counted((25, 1), np.float32)[:].ravel(), np.arange(25))
    assert asked == [10, 10, 5]
