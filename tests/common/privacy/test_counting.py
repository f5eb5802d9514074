"""Counting gives the integers that clipping record by record gives, and refuses what would break its bound."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from dpdd.common.privacy.clipping import (
    FIXED_POINT_ONE,
    ClippedSum,
    Layout,
    class_segment,
    global_segment,
    product_segment,
)
from dpdd.common.privacy.counting import CountedSum, OneHot

SIZES = (3, 5, 2, 4)
STARTS = np.cumsum([0, *SIZES[:-1]])
WIDTH, CLASSES = sum(SIZES), 3


def layout(norm: float) -> Layout:
    pairs = (product_segment("pairs", CLASSES * WIDTH, WIDTH, CLASSES, norm),) if norm else ()
    return Layout((class_segment("columns", WIDTH, CLASSES), global_segment("all", 2, CLASSES), *pairs))


def records(count: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    generator = np.random.Generator(np.random.PCG64(seed))
    codes = np.stack([generator.integers(0, size, count) for size in SIZES], axis=1)
    return codes + STARTS, generator.integers(0, CLASSES - 1, count)  # nobody has the last class


def one_hots(
    places: NDArray[np.int64], labels: NDArray[np.int64], values: tuple[float, ...], norm: float
) -> tuple[OneHot, dict[str, OneHot]]:
    """In the columns, once in the segment `all`, and as pairs."""
    plain = OneHot(np.concatenate([places, WIDTH + labels[:, None] % 2], axis=1), values)
    return plain, {"pairs": OneHot(places, (1.0, 2.0, 0.5, 1.0))} if norm else {}


def dense(rows: OneHot, width: int) -> NDArray[np.float64]:
    array = np.zeros((len(rows.places), width))
    array[np.arange(len(array))[:, None], rows.places] = rows.values
    return array


@pytest.mark.parametrize("norm", [0.0, 0.7])
@pytest.mark.parametrize("values", [(0.2, 0.2, 0.2, 0.2, 0.3), (3.0, 0.0, 1e-9, 2.0, 40.0)])
def test_it_is_the_sum_of_clipped_contributions(norm: float, values: tuple[float, ...]) -> None:
    places, labels = records(70, seed=1)
    plain, factors = one_hots(places, labels, values, norm)
    counted, clipped = CountedSum(layout(norm)), ClippedSum(layout(norm))
    counted.count(plain, labels, factors)
    as_dense = {
        name: (dense(OneHot(each.places + (WIDTH * labels)[:, None], each.values), CLASSES * WIDTH), dense(each, WIDTH))
        for name, each in factors.items()
    }
    clipped.add(dense(plain, WIDTH + 2), labels, as_dense)
    expected = clipped._take()
    for name, sums in counted._take().items():
        np.testing.assert_array_equal(sums, expected[name])


@pytest.mark.parametrize("norm", [0.0, 0.7])
def test_blocks_and_order_leave_no_trace_and_a_record_has_norm_1_at_most(norm: float) -> None:
    places, labels = records(40, seed=2)
    values = (0.9, 0.9, 0.9, 0.9, 0.9)

    def summed(*blocks: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        total = CountedSum(layout(norm))
        for block in blocks:
            plain, factors = one_hots(places[block], labels[block], values, norm)
            total.count(plain, labels[block], factors)
        return total._take()

    everybody = np.arange(40)
    whole = summed(everybody)
    for blocks in ([everybody[::-1]], [everybody[:1], everybody[1:1], everybody[1:17], everybody[17:]]):
        for name, sums in summed(*blocks).items():
            np.testing.assert_array_equal(sums, whole[name])
    for one in range(40):
        without = summed(np.delete(everybody, one))
        squares = sum(int((np.square(whole[name] - without[name])).sum()) for name in whole)
        assert 0.9 < math.sqrt(squares) / FIXED_POINT_ONE <= 1.0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"places": [[0, 0, 8, 10, 14]]}, "rise"),  # twice at one place: norm √2 where 1 is checked
        ({"places": [[3, 0, 8, 10, 14]]}, "rise"),
        ({"places": [[0, 3, 8, 10, 16]]}, "rise"),
        ({"places": [[-1, 3, 8, 10, 14]]}, "rise"),
        ({"places": [[0, 3, 8, 10]]}, "5 places"),
        ({"values": (0.1, 0.1, np.nan, 0.1, 0.1)}, "places and numbers"),
        ({"places": [[0, 3, 8, 10, 14], [0, 3, 8, 14, 15]]}, "same segments"),
        ({"labels": [3]}, "label"),
        ({"labels": [-1]}, "label"),
        ({"factors": {"pairs": OneHot(np.zeros((1, 0), np.int64), ())}}, "wants outer products"),
    ],
    ids=str,
)
def test_what_would_break_the_bound_is_refused(change: dict[str, object], sentence: str) -> None:
    given: dict = {"places": [[0, 3, 8, 10, 14]], "values": (0.2,) * 5, "factors": {}, **change}
    places = np.array(given["places"])
    labels = np.array(given.get("labels", [0] * len(places)))
    total = CountedSum(layout(0.0))
    with pytest.raises((ValueError, IndexError), match=sentence):
        total.count(OneHot(places, given["values"]), labels, given["factors"])
    assert all((sums == 0).all() for sums in total._take().values())


def test_only_products_of_a_row_with_itself_are_counted() -> None:
    other = Layout((global_segment("all", 2, 2), product_segment("pairs", 5, 3, 2, 0.5)))
    row = OneHot(np.array([[0]]), (1.0,))
    with pytest.raises(ValueError, match="no outer product of a row with itself"):
        CountedSum(other).count(row, np.array([0]), {"pairs": row})


def test_it_is_a_clean_sum_like_any_other() -> None:
    total = CountedSum(layout(0.0))
    total._take()
    with pytest.raises(RuntimeError, match="privatised already"):
        total.count(OneHot(np.zeros((0, 5), np.int64), (0.1,) * 5), np.zeros(0, np.int64))
    with pytest.raises(TypeError, match="private"):
        total.__reduce__()
