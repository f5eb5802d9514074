"""Reading ahead: in order, never more than a few blocks at once, errors in their place, no thread left behind."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import pytest

from dpdd.common.data.features import LazyFeatures
from dpdd.common.data.read_ahead import read_ahead
from dpdd.common.errors import DataError


class Watched(LazyFeatures):
    """Features that count how many of the blocks that they gave are still held by somebody."""

    def __init__(self, count: int, damaged: int = -1) -> None:
        super().__init__((count, 1), np.float32)
        self.alive = self.most = self.read = 0
        self.damaged, self.lock = damaged, threading.Lock()

    def rows(self, positions: np.ndarray) -> np.ndarray:
        if self.damaged in positions:
            raise DataError("damaged")
        block = positions.astype(np.float32)[:, None]
        with self.lock:
            self.read += 1
            self.alive += 1
            self.most = max(self.most, self.alive)
        weakref.finalize(block, self.gone)
        return block

    def gone(self) -> None:
        with self.lock:
            self.alive -= 1


def slices(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("dpdd-")]


@pytest.mark.parametrize("ahead", [0, 1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 10, 400])
def test_blocks_come_in_order_and_few_are_held(ahead: int, count: int) -> None:
    features, seen = Watched(count), []
    for block in read_ahead(features, slices(count, 4), ahead):
        seen += block.ravel().tolist()
        del block
    assert seen == list(range(count))
    assert features.most <= ahead + 1 and features.alive == 0
    assert readers() == []


def test_no_more_is_read_than_the_window_while_somebody_works() -> None:
    features = Watched(400)
    blocks = read_ahead(features, slices(400, 4), 2)
    next(blocks)
    for _ in range(50):  # let the reader go as far as it wants
        threading.Event().wait(0.001)
    assert features.read <= 3
    blocks.close()  # type: ignore[attr-defined]
    assert readers() == []


@pytest.mark.parametrize("ahead", [0, 2])
def test_an_error_comes_in_its_place(ahead: int) -> None:
    blocks = read_ahead(Watched(400, damaged=42), slices(400, 10), ahead)
    for _ in range(4):
        next(blocks)
    with pytest.raises(DataError, match="damaged"):
        next(blocks)
    assert readers() == []


def test_an_error_of_the_reader_s_user_ends_the_thread() -> None:
    with pytest.raises(KeyError):
        for block in read_ahead(Watched(400), slices(400, 10), 2):
            assert len(block) and len(readers()) == 1
            raise KeyError
    assert readers() == []
