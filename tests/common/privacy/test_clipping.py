"""One record moves the sum by at most `FIXED_POINT_ONE`, counted in integers, whatever the record holds."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from dpdd.common.privacy import clipping
from dpdd.common.privacy.clipping import (
    FIXED_POINT_ONE,
    ClippedSum,
    Layout,
    Segment,
    class_segment,
    clip_to_grid,
    factor_bound,
    factor_scale,
    factor_to_grid,
    global_segment,
    product_segment,
)

Factors = dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]

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
    for segment, columns in zip(layout.plain, layout.columns(), strict=True):
        total += len(segment.rows_of[label]) * sum(int(x) ** 2 for x in row[columns])
    return total


def clean(
    layout: Layout, rows: NDArray[np.float64], labels: NDArray[np.int64], factors: Factors | None = None
) -> dict[str, NDArray[np.int64]]:
    """The clean sums. Only a test may look at them."""
    total = ClippedSum(layout)
    total.add(rows, labels, factors)
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
        assert weighted_square(row, label, layout) <= FIXED_POINT_ONE**2
        if not np.isfinite(original).all():
            assert not row.any()


@settings(deadline=None, max_examples=200)
@given(records(), st.data())
def test_neighbours_differ_by_at_most_the_grid(
    drawn: tuple[Layout, NDArray[np.float64], NDArray[np.int64]], data: st.DataObject
) -> None:
    """Remove any one record (or, read backwards, add it): the sums move by at most `FIXED_POINT_ONE` in L2."""
    layout, rows, labels = drawn
    gone = data.draw(st.integers(0, len(rows) - 1))
    kept = np.arange(len(rows)) != gone
    with_, without = clean(layout, rows, labels), clean(layout, rows[kept], labels[kept])
    moved = sum(int(x) ** 2 for name in with_ for x in (with_[name] - without[name]).ravel())
    assert moved <= FIXED_POINT_ONE**2


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
    error = np.abs(clip_to_grid(rows, labels, layout) / FIXED_POINT_ONE - expected)
    assert error[used].max(initial=0.0) <= 1.01 / FIXED_POINT_ONE


@pytest.mark.parametrize("value", [1e155, 1e200, 1e308, 1.7e308])
def test_huge_rows_keep_their_direction(value: float) -> None:
    layout = Layout((global_segment("x", 2, 1),))
    grid = clip_to_grid(np.array([[0.75 * value, value]]), np.array([0]), layout)
    np.testing.assert_allclose(grid / FIXED_POINT_ONE, [[0.6, 0.8]], atol=3 / FIXED_POINT_ONE)


def test_tiny_rows_become_zero_and_not_something_else() -> None:
    layout = Layout((global_segment("x", 2, 1),))
    rows = np.array([[1e-320, -1e-320], [1e-308, 5e-324], [0.9 / FIXED_POINT_ONE, -0.9 / FIXED_POINT_ONE]])
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
    assert weighted_square(grid[0], 0, layout) <= FIXED_POINT_ONE**2


@pytest.mark.parametrize("margin", [1.000001, 2.0, 4096.0])
def test_the_bound_does_not_hang_on_the_float_arithmetic(margin: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were norms underestimated, the exact check would still drop what is too large, at 2^64 as well."""
    monkeypatch.setattr(clipping, "_MARGIN", margin)
    for side in (1, 2, 1 << 12):
        layout = Layout((Segment("x", side, side, (tuple(range(side)),)),))
        grid = clip_to_grid(np.full((1, side), 1e100), np.array([0]), layout)
        assert weighted_square(grid[0], 0, layout) <= FIXED_POINT_ONE**2


def test_overlapping_groups_count_as_often_as_they_are_added() -> None:
    layout = Layout((Segment("groups", 2, 3, ((0, 1), (1, 2), (0, 1, 2), ())),))
    rows, labels = np.full((4, 2), 10.0), np.arange(4)
    grid = clip_to_grid(rows, labels, layout)
    norms = [
        math.sqrt(weighted_square(row, label, layout)) / FIXED_POINT_ONE
        for row, label in zip(grid, labels, strict=True)
    ]
    np.testing.assert_allclose(norms, [1, 1, 1, 0], atol=1e-5)
    sums = clean(layout, rows, labels)["groups"]
    np.testing.assert_array_equal(sums[0], grid[0] + grid[2])
    np.testing.assert_array_equal(sums[1], grid[0] + grid[1] + grid[2])
    np.testing.assert_array_equal(sums[2], grid[1] + grid[2])


def test_float32_and_other_inputs_are_taken_as_they_are() -> None:
    layout = Layout((global_segment("x", 2, 1),))
    rows = np.array([[0.25, 0.5]], dtype=np.float32)
    np.testing.assert_array_equal(clip_to_grid(rows, np.array([0]), layout) // FIXED_POINT_ONE, 0)
    np.testing.assert_allclose(
        clip_to_grid(rows, np.array([0]), layout) / FIXED_POINT_ONE, rows, atol=2 / FIXED_POINT_ONE
    )


@pytest.mark.parametrize("shape", [(2, 1), (2, 3), (2, 5), (4,), (2, 4, 1), (3, 4)])
def test_rows_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    """A row of one column would be spread over all four, with twice the norm that was checked."""
    layout = Layout((global_segment("x", 4, 1),))
    total = ClippedSum(layout)
    with pytest.raises(ValueError, match="columns and one label per record"):
        total.add(np.ones(shape), np.zeros(2, dtype=np.int64))
    assert total._sums is not None and not total._sums["x"].any()


@pytest.mark.parametrize("label", [3, -1, -4])
def test_labels_outside_the_class_list_add_nothing(label: int) -> None:
    layout = Layout((class_segment("x", 1, 3),))
    total = ClippedSum(layout)
    with pytest.raises(IndexError):
        total.add(np.ones((1, 1)), np.array([label]))
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


# Outer products


@dataclass(frozen=True)
class Drawn:
    """Records of a layout with outer products."""

    layout: Layout
    rows: NDArray[np.float64]
    labels: NDArray[np.int64]
    factors: Factors

    def sums(self, kept: NDArray | None = None) -> dict[str, NDArray[np.int64]]:
        if kept is None:
            kept = np.arange(len(self.rows))
        return clean(self.layout, self.rows[kept], self.labels[kept], taken(self.factors, kept))


def taken(factors: Factors, kept: NDArray) -> Factors:
    """Some records' factors; one array for both sides stays one array."""
    subset = {}
    for name, (left, right) in factors.items():
        part = left[kept]
        subset[name] = (part, part if right is left else right[kept])
    return subset


@st.composite
def outer_products(draw: st.DrawFn, entries: st.SearchStrategy[float] = _numbers) -> Drawn:
    """Any plain segments (or none), and one to three outer products that share what norm there is."""
    plain = draw(layouts()).segments if draw(st.booleans()) else ()
    classes = len(plain[0].rows_of) if plain else draw(st.integers(1, 4))
    weights = draw(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=3))
    part = draw(st.sampled_from([1.0, 0.999, 0.5, 0.01])) / sum(weights)
    count = draw(st.integers(1, 6))
    products, factors = [], {}
    for index, weight in enumerate(weights):
        left = draw(hnp.arrays(np.float64, (count, draw(st.integers(1, 4))), elements=entries))
        right = left if draw(st.booleans()) else draw(hnp.arrays(np.float64, (count, 2), elements=entries))
        norm = min(math.sqrt(weight * part), 1.0)
        products.append(product_segment(f"p{index}", left.shape[1], right.shape[1], classes, norm))
        factors[f"p{index}"] = (left, right)
    layout = Layout((*plain, *products))
    rows = draw(hnp.arrays(np.float64, (count, layout.width), elements=entries))
    labels = draw(hnp.arrays(np.int64, count, elements=st.integers(0, classes - 1)))
    return Drawn(layout, rows, labels, factors)


def moved(one: dict[str, NDArray[np.int64]], other: dict[str, NDArray[np.int64]]) -> int:
    """The squared distance of two sums, in Python integers."""
    return sum(int(x) ** 2 for name in one for x in (one[name] - other[name]).ravel())


@settings(deadline=None, max_examples=200)
@given(outer_products(), st.data())
def test_neighbours_differ_by_at_most_the_grid_with_outer_products_too(drawn: Drawn, data: st.DataObject) -> None:
    gone = data.draw(st.integers(0, len(drawn.rows) - 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole, without = drawn.sums(), drawn.sums(np.flatnonzero(np.arange(len(drawn.rows)) != gone))
    assert moved(whole, without) <= FIXED_POINT_ONE**2
    parts = [drawn.rows[gone], *(factor[gone] for pair in drawn.factors.values() for factor in pair)]
    if not all(np.isfinite(part).all() for part in parts):
        assert moved(whole, without) == 0, "a NaN anywhere takes out all of the record"


@settings(deadline=None, max_examples=100)
@given(outer_products())
def test_sums_of_outer_products_are_those_of_python_integers(drawn: Drawn) -> None:
    sums = drawn.sums()
    whole = np.isfinite(drawn.rows).all(axis=1)
    for pair in drawn.factors.values():
        for factor in pair:
            whole &= np.isfinite(factor).all(axis=1)
    for segment in drawn.layout.products:
        left, right = (factor_to_grid(drawn.factors[segment.name][side], segment, side) for side in (0, 1))
        expected = [
            sum(int(a[i]) * int(b[j]) for a, b, kept in zip(left, right, whole, strict=True) if kept)
            for i in range(left.shape[1])
            for j in range(right.shape[1])
        ]
        assert sums[segment.name].shape == (1, len(expected))
        assert sums[segment.name][0].tolist() == expected


@settings(deadline=None, max_examples=100)
@given(outer_products(), st.data())
def test_order_batches_and_splits_leave_no_trace_in_outer_products(drawn: Drawn, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(drawn.rows))))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(drawn.rows)), max_size=3)))
    pieces = ClippedSum(drawn.layout)
    for piece in np.split(np.array(order), cuts):
        pieces.add(drawn.rows[piece], drawn.labels[piece], taken(drawn.factors, piece))
    assert pieces._sums is not None and moved(pieces._sums, drawn.sums()) == 0


def test_many_records_of_the_largest_entries_add_up_exactly() -> None:
    """No matrix product may round: here every product is 2^20 less a little, and thousands add up."""
    generator = np.random.default_rng(1)
    layout = Layout((product_segment("p", 3, 2, 1, norm=1.0),))
    left, right = np.eye(3)[generator.integers(0, 3, 7001)], np.eye(2)[generator.integers(0, 2, 7001)]
    left[::2] *= -1.0
    left[1::3] *= generator.random((2334, 1))
    sums = clean(layout, np.zeros((7001, 0)), np.zeros(7001, dtype=np.int64), {"p": (left, right)})["p"]
    (segment,) = layout.products
    first, second = (factor_to_grid(f, segment, side).astype(int).astype(object) for side, f in ((0, left), (1, right)))
    assert sums[0].tolist() == (first.T @ second).ravel().tolist()


@st.composite
def factor_rows(draw: st.DrawFn) -> tuple[Segment, NDArray[np.float64]]:
    width = draw(st.integers(1, 40))
    norm = draw(st.one_of(st.floats(1e-9, 1.0), st.sampled_from([1.0, 0.5, 1e-3])))
    rows = draw(hnp.arrays(np.float64, (draw(st.integers(1, 4)), width), elements=_numbers))
    return product_segment("p", width, width, 1, norm), rows


@settings(deadline=None, max_examples=300)
@given(factor_rows())
def test_factors_are_whole_numbers_within_their_bound(drawn: tuple[Segment, NDArray[np.float64]]) -> None:
    segment, rows = drawn
    before = rows.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        grid = factor_to_grid(rows, segment, 0)
    np.testing.assert_array_equal(rows, before)
    assert factor_bound(segment) ** 2 <= segment.norm * FIXED_POINT_ONE and grid.shape == rows.shape
    for row, original in zip(grid, rows, strict=True):
        assert all(float(x).is_integer() for x in row)
        assert sum(int(x) ** 2 for x in row) <= factor_bound(segment) ** 2
        if not np.isfinite(original).all():
            assert not row.any()


@settings(deadline=None, max_examples=200)
@given(factor_rows(), st.integers(1, 30), st.data())
def test_factors_keep_sign_order_and_direction(
    drawn: tuple[Segment, NDArray[np.float64]], power: int, data: st.DataObject
) -> None:
    segment, rows = drawn
    grid = factor_to_grid(rows, segment, 0)
    np.testing.assert_array_equal(factor_to_grid(-rows, segment, 0), -grid)
    finite = np.isfinite(rows).all(axis=1)
    clipped = rows[finite] / np.maximum(np.abs(rows[finite]).max(axis=1, initial=0.0), 1.0)[:, None]
    clipped = clipped / np.maximum(np.linalg.norm(clipped, axis=1), 1.0)[:, None]
    assert np.abs(grid[finite] - factor_scale(segment, 0) * clipped).max(initial=0.0) <= 0.5 + 1e-6
    with np.errstate(over="ignore"):
        long = (np.abs(rows) >= 1.0).any(axis=1) & np.isfinite(rows * 2.0**power).all(axis=1)
    scaled = rows[long] * 2.0**power
    np.testing.assert_array_equal(factor_to_grid(scaled, segment, 0), grid[long])  # clipped rows are directions
    order = data.draw(st.permutations(range(rows.shape[1])))
    assert np.abs(factor_to_grid(rows[:, order], segment, 0) - grid[:, order]).max(initial=0.0) <= 1.0


def test_factors_are_rounded_without_bias() -> None:
    """Neither up, nor towards zero: a second moment must not shrink by the number of records times half a step."""
    rows = np.random.default_rng(5).normal(size=(4000, 20)) / 5.0
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)
    segment = product_segment("p", 20, 20, 1, norm=0.7)
    exact = rows * factor_scale(segment, 0)
    errors = factor_to_grid(rows, segment, 0) - exact
    tolerance = 5.0 * math.sqrt(1.0 / 12.0 / errors.size)
    assert abs(errors.mean()) < tolerance and abs((errors * np.sign(exact)).mean()) < tolerance


@pytest.mark.parametrize("norm", [1e-9, 0.1, 0.5, 0.77, 1.0])
@pytest.mark.parametrize("width", [1, 10, 600])
def test_a_long_factor_uses_the_bound_but_for_rounding(norm: float, width: int) -> None:
    segment = product_segment("p", width, 1, 1, norm)
    row = np.random.default_rng(1).normal(size=(1, width)) * 1e9
    length = math.sqrt(sum(int(x) ** 2 for x in factor_to_grid(row, segment, 0)[0]))
    assert length <= factor_bound(segment)
    assert length >= factor_scale(segment, 0) - 0.5 * math.sqrt(width)


@settings(deadline=None)
@given(outer_products(st.floats(-9, 9)))
def test_the_room_is_all_that_outer_products_leave(drawn: Drawn) -> None:
    layout = drawn.layout
    taken_up = sum(factor_bound(segment) ** 4 for segment in layout.products)
    assert layout.plain_clip_norm**2 + taken_up <= FIXED_POINT_ONE**2 < (layout.plain_clip_norm + 1) ** 2 + taken_up
    for row, label in zip(clip_to_grid(drawn.rows, drawn.labels, layout), drawn.labels, strict=True):
        assert weighted_square(row, int(label), layout) <= layout.plain_clip_norm**2


def test_plain_segments_use_the_room() -> None:
    layout = Layout((global_segment("x", 3, 1), product_segment("p", 2, 2, 1, norm=0.8)))
    grid = clip_to_grid(np.full((1, 3), 1e6), np.array([0]), layout)
    assert math.sqrt(weighted_square(grid[0], 0, layout)) / FIXED_POINT_ONE == pytest.approx(0.6, abs=5e-3)
    small = np.array([[0.1, 0.2, 0.3]])
    np.testing.assert_allclose(
        clip_to_grid(small, np.array([0]), layout) / FIXED_POINT_ONE, small, atol=2 / FIXED_POINT_ONE
    )


def test_outer_products_above_norm_one_together_are_refused() -> None:
    half = math.sqrt(0.5)
    Layout((product_segment("a", 2, 2, 1, half), product_segment("b", 2, 2, 1, half)))
    with pytest.raises(ValueError, match="norm above 1 together"):
        Layout((product_segment("a", 2, 2, 1, half), product_segment("b", 2, 2, 1, 0.72)))
    with pytest.raises(ValueError, match="norm above 1 together"):
        Layout((product_segment("a", 2, 2, 1, 1.0), product_segment("b", 2, 2, 1, 0.01), global_segment("x", 1, 1)))


@pytest.mark.parametrize("norm", [0.0, -0.5, 1.0001, math.nan, math.inf])
def test_outer_products_without_a_proper_norm_are_refused(norm: float) -> None:
    with pytest.raises(ValueError, match="outer product"):
        product_segment("p", 2, 2, 1, norm)


def test_outer_products_of_another_form_are_refused() -> None:
    for width, rows, rows_of in ((3, 1, ((0,),)), (4, 2, ((0,),))):
        with pytest.raises(ValueError, match="outer product"):
            Segment("p", width, rows, rows_of, (2, 2), 0.5)


GOOD = {"p": (np.ones((2, 3)), np.ones((2, 2))), "q": (np.ones((2, 2)), np.ones((2, 2)))}


@pytest.mark.parametrize(
    "factors",
    [
        None,
        {"p": GOOD["p"]},
        {"q": GOOD["q"]},
        GOOD | {"r": GOOD["q"]},
        GOOD | {"q": (np.ones((2, 2)), np.ones((2, 1)))},
        GOOD | {"q": (np.ones((1, 2)), np.ones((1, 2)))},
        GOOD | {"q": (np.ones((2, 2)), np.ones((1, 2)))},
        GOOD | {"q": (np.ones(2), np.ones(2))},
        GOOD | {"q": (np.ones((2, 2)),)},
        GOOD | {"p": (GOOD["p"][1], GOOD["p"][0])},
    ],
    ids=[
        "none",
        "second missing",
        "first missing",
        "one too many",
        "narrow",
        "short",
        "one short",
        "flat",
        "single",
        "swapped",
    ],
)
def test_missing_or_odd_factors_are_refused_before_anything_is_added(factors: Any) -> None:
    layout = Layout(
        (global_segment("x", 1, 1), product_segment("p", 3, 2, 1, norm=0.5), product_segment("q", 2, 2, 1, norm=0.5))
    )
    total = ClippedSum(layout)
    with pytest.raises(ValueError, match="factors of shapes"):
        total.add(np.ones((2, 1)), np.zeros(2, dtype=np.int64), factors)
    assert total._sums is not None and not any(array.any() for array in total._sums.values())
    total.add(np.ones((2, 1)), np.zeros(2, dtype=np.int64), GOOD)
    assert all(array.any() for array in total._sums.values())


def test_a_layout_without_outer_products_takes_no_factors() -> None:
    total = ClippedSum(Layout((global_segment("x", 1, 1),)))
    with pytest.raises(ValueError, match="factors of shapes"):
        total.add(np.ones((2, 1)), np.zeros(2, dtype=np.int64), GOOD)


@settings(deadline=None, max_examples=100)
@given(records())
def test_sums_of_plain_segments_are_those_of_python_integers(
    drawn: tuple[Layout, NDArray[np.float64], NDArray[np.int64]],
) -> None:
    """Against a slow twin: record by record, and row by row of the sum."""
    layout, rows, labels = drawn
    sums, grid = clean(layout, rows, labels), clip_to_grid(rows, labels, layout)
    for segment, columns in zip(layout.plain, layout.columns(), strict=True):
        expected = [[0] * segment.width for _ in range(segment.rows)]
        for part, label in zip(grid[:, columns].tolist(), labels, strict=True):
            for number in segment.rows_of[label]:
                expected[number] = [one + other for one, other in zip(expected[number], part, strict=True)]
        assert sums[segment.name].tolist() == expected


@pytest.mark.parametrize("count", [1, 64, 250])
@pytest.mark.parametrize("same", [True, False])
def test_products_of_real_size_are_exact(count: int, same: bool) -> None:
    """At these sizes libraries take their fast roads; sums are far beyond what single precision would hold."""
    generator = np.random.default_rng(count)
    bound = factor_bound(product_segment("p", 320, 320, 1, norm=1.0))
    left = generator.integers(bound // 2, bound, (count, 320), endpoint=True)
    right = left if same else generator.integers(-bound, bound, (count, 200), endpoint=True)
    one, other = left.astype(np.float64), right.astype(np.float64)
    summed = clipping._summed_products(one, one if same else other)
    assert summed.dtype == np.int64
    np.testing.assert_array_equal(summed, left.T @ right)  # of integers: no library, and no rounding


def test_what_is_not_a_number_fails_the_norm_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are added together in floats: one that slipped through as NaN would take all others with it."""
    monkeypatch.setattr(clipping, "_MARGIN", math.nan)
    monkeypatch.setattr(clipping, "factor_scale", lambda *_: math.nan)
    layout = Layout((global_segment("x", 2, 1), product_segment("p", 2, 2, 1, norm=0.5)))
    sums = clean(layout, np.ones((3, 2)), np.zeros(3, dtype=np.int64), {"p": (np.ones((3, 2)), np.ones((3, 2)))})
    assert not any(array.any() for array in sums.values())


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["row", "left", "right"])
def test_one_odd_number_takes_out_all_of_its_record_and_nothing_else(where: str, poison: float) -> None:
    layout = Layout((class_segment("x", 2, 2), product_segment("p", 2, 3, 2, norm=0.5)))
    generator, labels = np.random.default_rng(6), np.array([0, 1, 0, 1])
    parts = {name: generator.random((4, width)) / 4.0 for name, width in (("row", 2), ("left", 2), ("right", 3))}
    others = [0, 1, 3]
    kept = {name: part[others] for name, part in parts.items()}
    expected = clean(layout, kept["row"], labels[others], {"p": (kept["left"], kept["right"])})
    parts[where][2, -1] = poison
    sums = clean(layout, parts["row"], labels, {"p": (parts["left"], parts["right"])})
    assert all(array.any() for array in expected.values()) and moved(sums, expected) == 0
