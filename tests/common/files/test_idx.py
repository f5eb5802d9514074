"""IDX files: what goes in comes out, and a file that lies about itself gives one clear `DataError`."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdd.common.errors import DataError
from dpdd.common.files import idx
from dpdd.common.files import untrusted as files

IMAGES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
LABELS = np.array([3, 1], dtype=np.uint8)


def refused(path: Path, *fragments: str, labels: bool = False) -> str:
    with pytest.raises(DataError) as caught:
        (idx.read_labels if labels else idx.read_images)(path)
    message = str(caught.value)
    assert "\n" not in message and str(path) in message
    for fragment in fragments:
        assert fragment in message
    return message


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_round_trip(tmp_path: Path, suffix: str) -> None:
    idx.write(tmp_path / f"images{suffix}", IMAGES)
    idx.write(tmp_path / f"labels{suffix}", LABELS)
    assert np.array_equal(idx.read_images(tmp_path / f"images{suffix}"), IMAGES)
    assert np.array_equal(idx.read_labels(tmp_path / f"labels{suffix}"), LABELS)


def test_gzip_is_known_by_its_bytes_not_its_name(tmp_path: Path) -> None:
    idx.write(tmp_path / "a.gz", IMAGES)
    (tmp_path / "plain-name").write_bytes((tmp_path / "a.gz").read_bytes())
    assert np.array_equal(idx.read_images(tmp_path / "plain-name"), IMAGES)


def test_writing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    idx.write(tmp_path / "a.gz", IMAGES)
    idx.write(tmp_path / "b.gz", IMAGES)
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


def test_no_record_is_a_legal_file(tmp_path: Path) -> None:
    idx.write(tmp_path / "none", np.zeros((0, 3, 4), dtype=np.uint8))
    assert idx.read_images(tmp_path / "none").shape == (0, 3, 4)


@pytest.mark.parametrize("array", [np.zeros((2, 2)), np.zeros((2, 2), dtype=np.uint8)])
def test_only_bytes_are_written(tmp_path: Path, array: np.ndarray) -> None:
    with pytest.raises(DataError, match="uint8 images N, H, W or uint8 labels N"):
        idx.write(tmp_path / "x", array)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    refused(tmp_path / "absent", "does not exist", "IDX image file")
    refused(tmp_path, "is a folder")


def test_images_and_labels_swapped(tmp_path: Path) -> None:
    idx.write(tmp_path / "labels", LABELS)
    refused(tmp_path / "labels", "are images and labels swapped?")


def test_something_else(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"hello world, this is not IDX")
    refused(tmp_path / "text", "starts with 68 65 6c 6c", "00 00 08 03")
    (tmp_path / "empty").write_bytes(b"")
    refused(tmp_path / "empty", "starts with nothing")


def test_cut_within_the_header(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(bytes((0, 0, 8, 3, 0, 0)))
    refused(tmp_path / "short", "ends within its header")


@pytest.mark.parametrize("change", [-1, 1])
def test_plain_file_of_the_wrong_length(tmp_path: Path, change: int) -> None:
    path = tmp_path / "images"
    idx.write(path, IMAGES)
    data = path.read_bytes()
    path.write_bytes(data[:-1] if change < 0 else data + b"x")
    refused(path, "announces 2 x 3 x 4 = 24 bytes", f"holds {24 + change}")


@pytest.mark.parametrize("change", [-1, 1])
def test_gzipped_file_of_the_wrong_length(tmp_path: Path, change: int) -> None:
    path = tmp_path / "images.gz"
    idx.write(tmp_path / "images", IMAGES)
    data = (tmp_path / "images").read_bytes()
    path.write_bytes(gzip.compress(data[:-1] if change < 0 else data + b"x"))
    refused(path, "announces 2 x 3 x 4 = 24 bytes", "holds 23" if change < 0 else "holds more")


def test_gzip_checksum_is_verified(tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    idx.write(path, IMAGES)
    data = bytearray(path.read_bytes())
    data[-8] ^= 1
    path.write_bytes(data)
    refused(path, "cannot be read")


def test_images_without_pixels(tmp_path: Path) -> None:
    (tmp_path / "flat").write_bytes(struct.pack(">HBB3I", 0, 8, 3, 5, 0, 4))
    refused(tmp_path / "flat", "0 x 4 pixels")


@pytest.mark.parametrize("packed", [False, True])
def test_an_enormous_claim_allocates_nothing(tmp_path: Path, packed: bool) -> None:
    data = struct.pack(">HBB3I", 0, 8, 3, 2**32 - 1, 2**16, 2**16) + bytes(100)
    path = tmp_path / "bomb"
    path.write_bytes(gzip.compress(data) if packed else data)
    tracemalloc.start()
    refused(path, "announces")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5_000_000


def test_a_gzip_bomb_is_refused_before_it_unpacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "SMALL", 100_000)
    path = tmp_path / "bomb.gz"
    idx.write(path, np.zeros((200, 100, 100), dtype=np.uint8))
    refused(path, "unpacks to 2000000", "100 times")


mutations = st.tuples(st.integers(0, 200), st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4))


@given(mutation=mutations, packed=st.booleans(), labels=st.booleans())
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
def test_damaged_files_only_ever_give_data_errors(
    tmp_path_factory: pytest.TempPathFactory,
    mutation: tuple[int, list[tuple[int, int]]],
    packed: bool,
    labels: bool,
) -> None:
    path = tmp_path_factory.getbasetemp() / ("fuzz.gz" if packed else "fuzz")
    idx.write(path, LABELS if labels else IMAGES)
    length, changes = mutation
    data = bytearray(path.read_bytes()[:length])
    for position, value in changes:
        if data:
            data[position % len(data)] = value
    path.write_bytes(data)
    try:
        array = (idx.read_labels if labels else idx.read_images)(path)
    except DataError as error:
        assert "\n" not in str(error) and str(path) in str(error)
    else:
        assert array.dtype == np.uint8
