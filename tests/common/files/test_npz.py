"""The guarded reader of .npz archives."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dpdd.common.errors import DataError
from dpdd.common.files import npz
from dpdd.common.files import untrusted as files


def refused(path: Path, key: str, *fragments: str) -> None:
    with pytest.raises(DataError) as caught:
        npz.read(path, key)
    message = str(caught.value)
    assert "\n" not in message and str(path) in message
    for fragment in fragments:
        assert fragment in message


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(["a", "längst"]),
        np.zeros((0, 3), dtype=np.float16),
        np.array(5),
    ],
)
def test_reads_what_numpy_writes(tmp_path: Path, save, array: np.ndarray) -> None:
    save(tmp_path / "a.npz", x=array)
    read = npz.read(tmp_path / "a.npz", "x")
    assert np.array_equal(read, array) and read.dtype == array.dtype
    assert npz.header(tmp_path / "a.npz", "x") == (array.shape, array.dtype)


def test_a_missing_array_lists_those_there_are(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros(1), labels=np.zeros(1))
    refused(tmp_path / "a.npz", "pictures", "no array 'pictures'", "'images', 'labels'")


def test_python_objects_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([{"a": 1}], dtype=object))
    refused(tmp_path / "a.npz", "x", "Python objects")


@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
def test_named_fields_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(1, dtype=[("age", "<f4")]))
    refused(tmp_path / "a.npz", "x", "named fields")
    np.savez(tmp_path / "b.npz", x=np.zeros(1, dtype=[("年", "<f4")]))
    refused(tmp_path / "b.npz", "x", "format version (3, 0)")


def test_absent_folder_or_other_file(tmp_path: Path) -> None:
    refused(tmp_path / "absent.npz", "x", "does not exist")
    refused(tmp_path, "x", "is a folder")
    (tmp_path / "text").write_text("no archive")
    refused(tmp_path / "text", "x", "cannot be read as an .npz archive")


def member(path: Path, header: dict[str, object], data: bytes) -> None:
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, header)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", content.getvalue() + data)


def test_a_header_that_promises_terabytes_allocates_nothing(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    member(path, {"descr": "|u1", "fortran_order": False, "shape": (2**20, 2**20)}, b"abc")
    tracemalloc.start()
    refused(path, "x", "announces", "bytes but has")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5_000_000


def test_impossible_shapes_are_refused(tmp_path: Path) -> None:
    member(tmp_path / "a.npz", {"descr": "|u1", "fortran_order": False, "shape": (-1, -3)}, b"abc")
    refused(tmp_path / "a.npz", "x", "impossible form")


def test_a_deflate_bomb_is_refused_before_it_unpacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "SMALL", 100_000)
    np.savez_compressed(tmp_path / "bomb.npz", x=np.zeros(2_000_000, dtype=np.uint8))
    refused(tmp_path / "bomb.npz", "x", "unpacks to", "100 times")


def test_a_damaged_member_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(100, dtype=np.uint8))
    data = bytearray(path.read_bytes())
    data[data.index(bytes(range(40, 60)))] ^= 1
    path.write_bytes(data)
    refused(path, "x", "damaged")


def test_unusual_packings_are_refused(tmp_path: Path) -> None:
    content = io.BytesIO()
    np.save(content, np.zeros(3))
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("x.npy", content.getvalue())
    refused(tmp_path / "a.npz", "x", "np.savez")
