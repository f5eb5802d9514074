"""Rows of a file: the array's, in any order; temporary copies have no name; a file that shrinks is noticed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdd.common.data import row_file
from dpdd.common.data.row_file import RowFile, RowWriter, by_rows, temporary_file
from dpdd.common.errors import DataError


@given(
    count=st.integers(0, 30),
    row_shape=st.sampled_from([(), (3,), (2, 5), (0,)]),
    dtype=st.sampled_from(["uint8", ">f4", "<f8", ">u2", "?"]),
    offset=st.integers(0, 70),
    picks=st.lists(st.integers(0, 29), max_size=20),
)
@settings(max_examples=80, deadline=None, derandomize=True, database=None)
def test_rows_are_those_of_the_array(
    tmp_path_factory: pytest.TempPathFactory,
    count: int,
    row_shape: tuple[int, ...],
    dtype: str,
    offset: int,
    picks: list[int],
) -> None:
    array = np.random.default_rng(0).integers(0, 2, (count, *row_shape)).astype(dtype)
    path = tmp_path_factory.mktemp("rows") / "rows"
    path.write_bytes(bytes(offset) + array.tobytes() + b"more")
    rows = RowFile.open(path, offset, count, row_shape, dtype)
    chosen = np.array([pick for pick in picks if pick < count], dtype=np.int64)
    assert rows.shape == array.shape and rows.dtype == array.dtype and rows.ndim == array.ndim
    assert np.array_equal(rows[chosen], array[chosen])
    assert np.array_equal(rows[:], array) and np.array_equal(rows[3:7], array[3:7])


@pytest.mark.parametrize("block", [64, 1 << 24])
def test_rows_out_of_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(row_file, "_BLOCK", block)
    array = np.random.default_rng(0).normal(size=(23, 3, 4, 2)).astype(">f4")
    (tmp_path / "columns").write_bytes(array.tobytes(order="F"))
    numbers = RowFile.open(tmp_path / "columns", 0, array.size, (), ">f4")
    assert np.array_equal(by_rows(numbers, array.shape)[:], array)


def test_a_temporary_file_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    writer = RowWriter((4,), np.float32)
    writer.append(np.ones((1000, 4), np.float32))
    rows = writer.finish()
    assert list(tmp_path.iterdir()) == []
    with temporary_file() as file:
        status = os.fstat(file.fileno())
        assert status.st_nlink == 0 and status.st_mode & 0o077 == 0
    assert rows[:].sum() == 4000


def test_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    with pytest.raises(DataError, match="TMPDIR"):
        temporary_file()


def test_a_file_that_shrinks_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(bytes(100))
    rows = RowFile.open(path, 0, 10, (10,), np.uint8)
    os.truncate(path, 55)
    assert not rows[:5].any()
    with pytest.raises(DataError, match="became shorter"):
        rows[4:6]
