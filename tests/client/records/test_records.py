"""Private records: nothing private shows, nothing is copied away, and they are read a batch at a time."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest

from dpdd.client.records import Records, describe, load
from dpdd.common.errors import DataError
from tests.common.data.formats.samples import sample, spec, table_files


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
        records.features[0] = 0  # type: ignore[index]
    with pytest.raises(ValueError):
        records.labels[0] = 0
    floats = Records(np.ones((2, 3), dtype=np.float32), np.array([0, 1]))
    for batch, labels in floats.batches(2):
        batch[:] = 0
        labels[:] = 0
    assert floats.features[:].all() and floats.labels.tolist() == [0, 1]


def test_batches_and_take() -> None:
    records = private()
    assert [len(labels) for _, labels in records.batches(3)] == [3, 3, 1]
    assert all(batch.dtype == np.float32 and batch.max() <= 1 for batch, _ in records.batches(3))
    assert np.array_equal(records.take(records.labels == 1).read(slice(None)), records.read(slice(3, None)))
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
