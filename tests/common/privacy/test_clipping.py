"""One record moves the sum by at most `GRID`, counted in integers, whatever the record holds."""

from __future__ import annotations

import copy
import math
import pickle
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from dpdd.common.privacy import clipping
from dpdd.common.privacy.clipping import (
    GRID,
    ClippedSum,
    Layout,
    Segment,
    class_segment,
    clip_to_grid,
    global_segment,
)

HOSTILE = [math.nan, math.inf, -math.inf, 1e308, -1e308, 1e300, 1e155, 1e-155, 1e-308, 1e-320, 5e-324, -0.0, 1e20]


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Any layout: global parts, one row per class, overlapping groups, and classes that go nowhere."""
    classes = draw(st.integers(1, 4))
    segments = []
    for index in range(draw(st.integers(1, 3))):
        rows = draw(st.integers(1, 4))
        group = st.sets(st.integers(0, rows - 1)).map(tuple)
        groups = tuple(draw(st.lists(group, min_size=classes, max_size=classes)))
        segments.append(Segment(f"s{index}", draw(st.integers(1, 4)), rows, groups))
    return Layout(tuple(segments))


_numbers = st.one_of(st.floats(-2, 2), st.floats(width=64), st.sampled_from(HOSTILE))


@st.composite
def records(
    draw: st.DrawFn, entries: st.SearchStrategy[float] = _numbers
) -> tuple[Layout, NDArray[np.float64], NDArray[np.int64]]:
    layout = draw(layouts())
    count = draw(st.integers(1, 8))
    rows = draw(hnp.arrays(np.float64, (count, layout.width), elements=entries))
    labels = draw(hnp.arrays(np.int64, count, elements=st.integers(0, layout.classes - 1)))
    return layout, rows, labels


def weighted_square(row: NDArray[np.int64], label: int, layout: Layout) -> int:
    """In Python integers, which do not overflow."""
    total = 0
    for segment, columns in zip(layout.segments, layout.columns(), strict=True):
        total += len(segment.rows_of[label]) * sum(int(x) ** 2 for x in row[columns])
    return total


def clean(layout: Layout, rows: NDArray[np.float64], labels: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """The clean sums. Only a test may look at them."""
    total = ClippedSum(layout)
    total.add(rows, labels)
    assert total._sums is not None
    return total._sums


@settings(deadline=None, max_examples=200)
@given(records())
def test_every_row_has_norm_at_most_one_on_the_grid(
    drawn: tuple[Layout, NDArray[np.float64], NDArray[np.int64]],
) -> None:
    layout, rows, labels = drawn
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        grid = clip_to_grid(rows, labels, layout)
    assert grid.dtype == np.int64 and grid.shape == rows.shape
    for row, original, label in zip(grid, rows, labels, strict=True):
        assert weighted_square(row, label, layout) <= GRID**2
        if not np.isfinite(original).all():
            assert not row.any()


@settings(deadline=None, max_examples=200)
@given(records(), st.data())
def test_neighbours_differ_by_at_most_the_grid(
    drawn: tuple[Layout, NDArray[np.float64], NDArray[np.int64]], data: st.DataObject
) -> None:
    """Remove any one record (or, read backwards, add it): the sums move by at most `GRID` in L2."""
    layout, rows, labels = drawn
    gone = data.draw(st.integers(0, len(rows) - 1))
    kept = np.arange(len(rows)) != gone
    with_, without = clean(layout, rows, labels), clean(layout, rows[kept], labels[kept])
    moved = sum(int(x) ** 2 for name in with_ for x in (with_[name] - without[name]).ravel())
    assert moved <= GRID**2


@settings(deadline=None)
@given(records(st.floats(-3, 3)), st.data())
def test_order_batches_and_splits_leave_no_trace(
    drawn: tuple[Layout, NDArray[np.float64], NDArray[np.int64]], data: st.DataObject
) -> None:
    layout, rows, labels = drawn
    whole = clean(layout, rows, labels)
    order = data.draw(st.permutations(range(len(rows))))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    pieces = ClippedSum(layout)
    for piece in np.split(np.array(order), cuts):
        pieces.add(rows[piece], labels[piece])
    assert pieces._sums is not None
    for name, array in whole.items():
        np.testing.assert_array_equal(pieces._sums[name], array)


def test_a_large_batch_is_the_sum_of_its_records() -> None:
    """Vectorised reductions pick other orders for other sizes; integers do not care."""
    generator = np.random.default_rng(3)
    layout = Layout((class_segment("sums", 37, 5), global_segment("all", 11, 5)))
    rows, labels = generator.normal(size=(1000, 48)), generator.integers(0, 5, 1000)
    whole, single = clean(layout, rows, labels), ClippedSum(layout)
    for row, label in zip(rows, labels, strict=True):
        single.add(row[None], np.array([label]))
    assert single._sums is not None
    for name, array in whole.items():
        np.testing.assert_array_equal(single._sums[name], array)


@settings(deadline=None)
@given(records(st.floats(-5, 5)))
def test_the_grid_is_close_to_clipping_in_floats(
    drawn: tuple[Layout, NDArray[np.float64], NDArray[np.int64]],
) -> None:
    layout, rows, labels = drawn
    weights = np.repeat(layout.copies()[labels], [s.width for s in layout.segments], axis=1)
    norms = np.sqrt((weights * rows**2).sum(axis=1, keepdims=True))
    expected = rows / np.maximum(norms, 1.0)
    used = weights > 0  # columns that a class does not use are not clipped, and go nowhere
    error = np.abs(clip_to_grid(rows, labels, layout) / GRID - expected)
    assert error[used].max(initial=0.0) <= 1.01 / GRID


@pytest.mark.parametrize("value", [1e155, 1e200, 1e308, 1.7e308])
def test_huge_rows_keep_their_direction(value: float) -> None:
    layout = Layout((global_segment("x", 2, 1),))
    grid = clip_to_grid(np.array([[0.75 * value, value]]), np.array([0]), layout)
    np.testing.assert_allclose(grid / GRID, [[0.6, 0.8]], atol=3 / GRID)


def test_tiny_rows_become_zero_and_not_something_else() -> None:
    layout = Layout((global_segment("x", 2, 1),))
    rows = np.array([[1e-320, -1e-320], [1e-308, 5e-324], [0.9 / GRID, -0.9 / GRID]])
    assert not clip_to_grid(rows, np.zeros(3, dtype=np.int64), layout).any()


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_poisoned_record_leaves_the_sums_exactly_as_they_were(poison: float) -> None:
    """Its count coordinate included: nothing that leaves can depend on whether it was there."""
    layout = Layout((class_segment("sums", 3, 2), class_segment("counts", 1, 2)))
    rows, labels = np.array([[0.1, 0.2, 0.3, 0.1], [0.3, 0.1, -0.2, 0.1]]), np.array([0, 1])
    for column in range(4):
        bad = np.array([[0.5, 0.5, 0.5, 0.1]])
        bad[0, column] = poison
        without = clean(layout, rows, labels)
        with_ = clean(layout, np.concatenate([rows, bad]), np.append(labels, 1))
        for name, array in without.items():
            np.testing.assert_array_equal(with_[name], array)


def test_the_norm_check_cannot_be_overrun() -> None:
    """A huge entry in a column that the class does not use must not hide the others from the norm.

    And were they hidden, 64-bit integers would see a square of 2^64, that is, zero: hence the check in floats.
    """
    rows = 1 << 12
    layout = Layout((Segment("unused", 1, 1, ((),)), Segment("x", rows, rows, (tuple(range(rows)),))))
    row = np.full((1, 1 + rows), 1e100)
    row[0, 0] = 1e308
    grid = clip_to_grid(row, np.array([0]), layout)
    assert weighted_square(grid[0], 0, layout) <= GRID**2


@pytest.mark.parametrize("margin", [1.000001, 2.0, 4096.0])
def test_the_bound_does_not_hang_on_the_float_arithmetic(margin: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were norms underestimated, the exact check would still drop what is too large, at 2^64 as well."""
    monkeypatch.setattr(clipping, "_MARGIN", margin)
    for side in (1, 2, 1 << 12):
        layout = Layout((Segment("x", side, side, (tuple(range(side)),)),))
        grid = clip_to_grid(np.full((1, side), 1e100), np.array([0]), layout)
        assert weighted_square(grid[0], 0, layout) <= GRID**2


def test_overlapping_groups_count_as_often_as_they_are_added() -> None:
    layout = Layout((Segment("groups", 2, 3, ((0, 1), (1, 2), (0, 1, 2), ())),))
    rows, labels = np.full((4, 2), 10.0), np.arange(4)
    grid = clip_to_grid(rows, labels, layout)
    norms = [math.sqrt(weighted_square(row, label, layout)) / GRID for row, label in zip(grid, labels, strict=True)]
    np.testing.assert_allclose(norms, [1, 1, 1, 0], atol=1e-5)
    sums = clean(layout, rows, labels)["groups"]
    np.testing.assert_array_equal(sums[0], grid[0] + grid[2])
    np.testing.assert_array_equal(sums[1], grid[0] + grid[1] + grid[2])
    np.testing.assert_array_equal(sums[2], grid[1] + grid[2])


def test_float32_and_other_inputs_are_taken_as_they_are() -> None:
    layout = Layout((global_segment("x", 2, 1),))
    rows = np.array([[0.25, 0.5]], dtype=np.float32)
    np.testing.assert_array_equal(clip_to_grid(rows, np.array([0]), layout) // GRID, 0)
    np.testing.assert_allclose(clip_to_grid(rows, np.array([0]), layout) / GRID, rows, atol=2 / GRID)


@pytest.mark.parametrize("shape", [(2, 1), (2, 3), (2, 5), (4,), (2, 4, 1), (3, 4)])
def test_rows_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    """A row of one column would be spread over all four, with twice the norm that was checked."""
    layout = Layout((global_segment("x", 4, 1),))
    total = ClippedSum(layout)
    with pytest.raises(ValueError, match="columns and one label per record"):
        total.add(np.ones(shape), np.zeros(2, dtype=np.int64))
    assert total._sums is not None and not total._sums["x"].any()


def test_labels_outside_the_class_list_add_nothing() -> None:
    layout = Layout((class_segment("x", 1, 3),))
    total = ClippedSum(layout)
    with pytest.raises(IndexError):
        total.add(np.ones((1, 1)), np.array([3]))
    assert total._sums is not None and not total._sums["x"].any()


def test_layouts_that_would_add_two_segments_into_one_are_refused() -> None:
    with pytest.raises(ValueError, match="names of their own"):
        Layout((global_segment("x", 1, 2), global_segment("x", 1, 2)))
    with pytest.raises(ValueError, match="names of their own"):
        Layout(())
    with pytest.raises(ValueError, match="number of classes"):
        Layout((global_segment("x", 1, 2), global_segment("y", 1, 3)))


@pytest.mark.parametrize("width, rows, rows_of", [(0, 1, ((0,),)), (1, 0, ((),)), (1, 2, ((0, 0),)), (1, 2, ((2,),))])
def test_segments_that_cannot_be_are_refused(width: int, rows: int, rows_of: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ValueError, match="segment 'x'"):
        Segment("x", width, rows, rows_of)


def test_a_clean_sum_cannot_be_shown_copied_or_stored() -> None:
    total = ClippedSum(Layout((global_segment("x", 1, 1),)))
    total.add(np.array([[0.123]]), np.array([0]))
    for text in (repr(total), str(total), f"{total}"):
        assert text == "ClippedSum(private)"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            pickle.dumps(total, protocol)
    for operation in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            operation(total)
    for operation in (vars, iter, len, dict, list):
        with pytest.raises(TypeError):
            operation(total)
    with pytest.raises(TypeError):
        total["x"]  # type: ignore[index]
    with pytest.raises(AttributeError):
        total.kept = 1  # type: ignore[attr-defined]
