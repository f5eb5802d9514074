"""Sums in 16 bits: what rounding costs, and what strangers may send instead."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dpdd.common.errors import IntegrityError
from dpdd.common.privacy.clipping import Layout, class_segment
from dpdd.common.privacy.events import Gaussian
from dpdd.common.wire.arrays import from_wire, to_wire
from dpdd.common.wire.quantise import dequantise, quantise
from dpdd.common.wire.release import Release
from dpdd.server.aggregation.precision import by_precision
from dpdd.server.aggregation.sum import add_up

LAYOUT = Layout((class_segment("signal", 5, 3), class_segment("count", 1, 3)))
LARGEST = 2**61  # more than 13.5 times the widest noise


@settings(max_examples=200, deadline=None)
@given(arrays(np.int64, (3, 5), elements=st.integers(-LARGEST, LARGEST)))
def test_rounding_is_at_most_half_a_step_and_the_step_the_smallest(long: np.ndarray) -> None:
    short = quantise({"signal": long, "count": long[:, :1]}, "signal")
    step = int(short["signal-step"][0, 0])
    assert short["signal"].dtype == np.int16
    back = dequantise(short)
    assert back.keys() == {"signal", "count"} and back["signal"].dtype == np.int64
    for before, after in zip(long.ravel().tolist(), back["signal"].ravel().tolist(), strict=True):
        assert 2 * abs(before - after) <= step * (1 + 1e-9)
    np.testing.assert_array_equal(back["count"], long[:, :1])
    peak = int(np.abs(long).max())
    assert step == 1 or (step - 1) * (2**15 - 1) < peak


def test_small_numbers_and_none_at_all_travel_exactly() -> None:
    for long in (np.array([[32767, -32767, 0]]), np.zeros((2, 3), np.int64), np.zeros((0, 3), np.int64)):
        np.testing.assert_array_equal(dequantise(quantise({"x": long}, "x"))["x"], long)


def test_the_wire_carries_it_in_a_quarter_of_the_bytes() -> None:
    long = np.random.default_rng(1).integers(-(10**9), 10**9, (100, 50))
    short = quantise({"signal": long}, "signal")
    messages = [to_wire(name, array) for name, array in short.items()]
    assert sum(len(message.data) for message in messages) == 2 * long.size + 8
    np.testing.assert_array_equal(dequantise(from_wire(messages))["signal"], dequantise(short)["signal"])


def release(arrays: dict[str, np.ndarray], silo: str = "north") -> Release:
    """What a silo that does as it likes could send; honest code cannot build one."""
    forged = object.__new__(Release)
    values = {"arrays": arrays, "silo": silo, "event": Gaussian(2.0), "planned": Gaussian(2.0), "public_counts": ()}
    for name, value in values.items():
        object.__setattr__(forged, name, value)
    return forged


def sent(step: np.ndarray, signal: np.ndarray | None = None) -> dict[str, np.ndarray]:
    extreme = np.full((3, 5), -(2**15), np.int16) if signal is None else signal
    return {"signal": extreme, "signal-step": step, "count": np.ones((3, 1), np.int64)}


BAD_STEPS = {
    "zero": np.array([[0]]),
    "negative": np.array([[-3]]),
    "huge": np.array([[2**62]]),
    "hugest": np.array([[np.iinfo(np.int64).min]]),
    "just too large": np.array([[2**47]]),
    "wrong shape": np.array([3]),
    "one per row": np.ones((3, 1), np.int64),
    "floating": np.array([[1.0]]),
    "not a number": np.array([[np.nan]]),
    "short": np.array([[3]], np.int16),
    "empty": np.zeros((1, 0), np.int64),
}


@pytest.mark.parametrize("step", BAD_STEPS.values(), ids=BAD_STEPS)
def test_a_hostile_step_is_refused_by_name(step: np.ndarray) -> None:
    bad = release(sent(step))
    for aggregate in (add_up, lambda releases, layout: by_precision(releases, layout, 0.1)):
        with pytest.raises(IntegrityError, match="silo north sent arrays") as error:
            aggregate([bad], LAYOUT)  # type: ignore[operator]
        assert "\n" not in str(error.value)


def test_sixteen_bits_without_a_step_and_a_step_without_them_are_refused() -> None:
    whole = sent(np.array([[7]]))
    only_short = {name: array for name, array in whole.items() if name != "signal-step"}
    long_with_step = {**whole, "signal": whole["signal"].astype(np.int64)}
    nested = {**whole, "signal-step-step": np.array([[3]])}
    for odd in (only_short, long_with_step, nested):
        with pytest.raises(IntegrityError, match="silo north sent arrays"):
            add_up([release(odd)], LAYOUT)


def test_the_largest_allowed_step_cannot_wrap_the_sums() -> None:
    loud = sent(np.array([[2**47 - 1]]))
    alone = add_up([release(loud)], LAYOUT).sums["signal"]
    assert (alone < -(2.0**40)).all()
    two = [release(loud), release(loud)]
    np.testing.assert_array_equal(add_up(two, LAYOUT).sums["signal"], 2.0 * alone)
    for third in (loud, {"signal": np.full((3, 5), 2**17), "count": np.ones((3, 1), np.int64)}):
        with pytest.raises(IntegrityError, match="silo south sent sums 'signal' that are too large"):
            add_up([*two, release(third, "south")], LAYOUT)
    worst = {"signal": np.full((3, 5), np.iinfo(np.int64).min), "count": np.ones((3, 1), np.int64)}
    with pytest.raises(IntegrityError, match="too large"):
        add_up([release(worst)], LAYOUT)


def test_long_and_short_sums_add_up_together() -> None:
    """A silo may send either: the step is public, and the sum exact for what was sent."""
    long = {"signal": np.arange(15).reshape(3, 5) * 10**6, "count": np.ones((3, 1), np.int64)}
    short = quantise(long, "signal")
    total = add_up([release(long), release(short)], LAYOUT).sums["signal"] * 2**20
    np.testing.assert_array_equal(total, long["signal"] + dequantise(short)["signal"])
