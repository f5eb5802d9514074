"""Private records: nothing private shows, nothing is copied away, and they are read a batch at a time."""

from __future__ import annotations

import copy
import math
import pickle
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

from dpdd.client.mechanisms.base import mechanism
from dpdd.client.records import Records, describe, load
from dpdd.client.records.records import BLOCK
from dpdd.common.data.features import LazyFeatures
from dpdd.common.errors import DataError
from dpdd.common.methods.registry import method
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.progress import silent
from dpdd.common.wire.request import ReleaseRequest
from tests.common.data.formats.samples import CLASSES, sample, spec, table_files, write_all


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


# Records on disk


def contributions(records: Records) -> bytes:
    """The clean sums of DP-MERF over these records, as they would be noised; possible in simulations only."""
    request = ReleaseRequest("test", "dp-merf", {"features": 20}, math.inf, 1e-5, CLASSES, records.shape, public_seed=1)
    chosen = method("dp-merf")
    settings = chosen.settings(request.settings)
    plan = chosen.plan(request, settings)
    released = mechanism(chosen).run(records, request, settings, plan, SeededEntropy(1), silent)
    return b"".join(released.arrays[name].tobytes() for name in sorted(released.arrays))


@pytest.mark.parametrize("channels", [1, 3])
def test_sums_are_the_same_to_the_last_bit_from_every_format_in_any_order(tmp_path: Path, channels: int) -> None:
    images, labels = sample(channels, count=150, height=6, width=7)
    expected = contributions(Records(images, labels))
    orders = [np.arange(150)[::-1], np.random.default_rng(3).permutation(150)]
    for name, declared in write_all(tmp_path, images, labels).items():
        records = load(declared, tmp_path)
        assert not isinstance(records.features, np.ndarray) and records.shape == (channels, 6, 7)
        assert contributions(records) == expected, name
        for order in orders[: 2 if channels == 1 else 1]:
            assert contributions(records.take(order)) == expected, name


@pytest.mark.parametrize("fit", ["resize", "crop", "pad"])
def test_a_record_on_disk_adds_the_same_whoever_is_beside_it(tmp_path: Path, fit: str) -> None:
    """Sums without a record, and its own alone, add up to the sums of all: in integers, so exactly."""
    images, labels = sample(3, count=70, height=9, width=7)
    declared = write_all(tmp_path, images, labels)["folder of png"].model_copy(update={"fit": fit, "shape": (3, 5, 5)})
    records = load(declared, tmp_path)

    def sums(chosen: np.ndarray) -> np.ndarray:
        return np.frombuffer(contributions(records.take(chosen)), dtype=np.int64)

    everyone = np.arange(70)
    for left_out in (0, 33, 69):
        assert np.array_equal(sums(everyone), sums(np.delete(everyone, left_out)) + sums(np.array([left_out])))


def test_batches_of_records_on_disk_are_those_of_records_in_memory(tmp_path: Path) -> None:
    images, labels = sample(1, count=150)
    inside = Records(images, labels)
    for name, declared in write_all(tmp_path, images, labels).items():
        records = load(declared, tmp_path)
        for size in (1, 7, 64, 200):
            pairs = zip(records.batches(size), inside.batches(size), strict=True)
            for (batch, batch_labels), (wanted, wanted_labels) in pairs:
                assert batch.dtype == np.float32 and np.array_equal(batch, wanted), name
                assert batch.flags.writeable and np.array_equal(batch_labels, wanted_labels)
        assert np.array_equal(records.read(np.array([149, 3])), inside.read(np.array([149, 3])))
        some = records.take([149, 3, 80])
        assert np.array_equal(some.read(slice(None)), inside.read(np.array([149, 3, 80]))), name
        assert some.labels.tolist() == labels[[149, 3, 80]].tolist() and some.shape == (1, 4, 5)
        assert repr(records) == "Records(private)" == repr(records.take([1, 2]))
        with pytest.raises(TypeError, match="private records"):
            pickle.dumps(records)


class Counted(LazyFeatures):
    """Features that know how many of their records are held by anybody, and how many were asked for at once."""

    def __init__(self, count: int) -> None:
        super().__init__((count, 1, 2, 2), np.uint8)
        self.alive, self.most, self.lock = 0, 0, threading.Lock()

    def rows(self, positions: np.ndarray) -> np.ndarray:
        block = np.zeros((len(positions), 1, 2, 2), np.uint8)
        with self.lock:
            self.alive += len(block)
            self.most = max(self.most, self.alive)
        weakref.finalize(block, self.gone, len(block))
        return block

    def gone(self, count: int) -> None:
        with self.lock:
            self.alive -= count


@pytest.mark.parametrize("size", [1, 10, 64, 100])
def test_few_records_are_in_memory_however_many_there_are(size: int) -> None:
    most = []
    for count in (2000, 20_000):
        features = Counted(count)
        records = Records(features, np.zeros(count, np.int64))
        assert sum(len(labels) for _, labels in records.batches(size)) == count
        most.append(features.most)
    block = size * -(-BLOCK // size)
    assert max(most) <= 4 * block, "the block that is worked on, the next, and two that are read ahead"


def test_a_damaged_record_stops_the_pass_with_its_name(tmp_path: Path) -> None:
    images, labels = sample(1, count=150)
    declared = write_all(tmp_path, images, labels)["folder of png"]
    (tmp_path / "png" / "dog" / "0130.png").write_bytes(b"no image")
    seen = 0
    with pytest.raises(DataError, match=r"0130\.png"):
        for batch, _ in load(declared, tmp_path).batches(10):
            seen += len(batch)
    assert seen == 70 and not [each for each in threading.enumerate() if each.name.startswith("dpdd-")]


def test_bytes_are_read_by_a_public_scale() -> None:
    """A byte means the same whoever is beside it: neither the brightest nor the darkest of a batch is asked."""
    for value in (1, 100, 255):
        for other in (0, 50, 255):
            images = np.stack([np.full((1, 2, 2), level, np.uint8) for level in (value, other)])
            records = Records(images, np.array([0, 1]))
            expected = np.full((1, 2, 2), np.float32(value) / np.float32(255))
            np.testing.assert_array_equal(records.read(slice(0, 2))[0], expected)
            for size in (1, 2):
                np.testing.assert_array_equal(next(records.batches(size))[0][0], expected)
