"""Sums of factors, against contributions that are made, in whole numbers of any size."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dpdd.common.privacy.clipping import (
    FIXED_POINT_ONE,
    Layout,
    Segment,
    class_segment,
    clip_to_grid,
    global_segment,
)
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.privacy.events import NonPrivate
from dpdd.common.privacy.factored import ROOM, Basis, FactoredSum, Factors, bound_of
from dpdd.common.privacy.privatise import privatise

SHAPES = [(5, 12), (6, 4), (1, 3), (20, 60)]


def rows(count: int, width: int, seed: int = 0) -> NDArray[np.float64]:
    return np.random.Generator(np.random.PCG64(seed)).random((count, width))


def factors(number: int, count: int, width: int, size: float = 1.0, seed: int = 1) -> Factors:
    generator = np.random.Generator(np.random.PCG64(seed))
    shapes = ((number, count), (number, count, count), (number, width))
    left, mixing, right = (torch.from_numpy(generator.standard_normal(shape)).float() for shape in shapes)
    return Factors(size * left, size * mixing / count, right.abs())


def contributions(grid: Factors, basis: Basis) -> NDArray[np.object_]:
    """p ⊗ x + M V in Python's whole numbers: (N, m, P)."""
    p, q, x, v = (each.numpy().astype(object) for each in (grid.left, grid.mixing, grid.right, basis.rows))
    whole = np.vectorize(int, otypes=[object])
    p, q, x, v = (whole(each) for each in (p, q, x, v))
    return np.array([np.outer(a, c) + b.dot(v) for a, b, c in zip(p, q, x, strict=True)])


def squared_norms(grid: Factors, basis: Basis) -> list[int]:
    return [int((each.ravel() ** 2).sum()) for each in contributions(grid, basis)]


@pytest.mark.parametrize("size", [0.003, 1.0, 1e6])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_contributions_are_those_of_real_numbers_clipped_to_norm_1(shape: tuple[int, int], size: float) -> None:
    support, given = rows(*shape), factors(40, *shape, size=size)
    basis = Basis.of(support)
    grid = basis.to_grid(given)
    assert max(squared_norms(grid, basis)) <= FIXED_POINT_ONE**2
    made = np.einsum("ij,ik->ijk", given.left.numpy(), given.right.numpy()) + given.mixing.numpy() @ support
    norms = np.sqrt(np.square(made).sum((1, 2), keepdims=True))
    found = contributions(grid, basis).astype(np.float64) / FIXED_POINT_ONE
    wrong = np.sqrt(np.square(found - made / np.maximum(norms, 1.0)).sum((1, 2)))
    # what factors of 20 bits together can tell, and three times the room (some records need more, and have 2^-5)
    assert np.median(wrong) < 0.02 and (wrong < 0.07).all(), (np.median(wrong), wrong.max())
    assert np.median(np.sqrt(np.square(found).sum((1, 2))) - np.minimum(norms.ravel(), 1.0)) > -3.0 * ROOM - 0.002


HOSTILE: dict[str, Callable[[Factors], None]] = {
    "a record of huge numbers": lambda f: f.right[3].mul_(1e30),
    "factors of huge numbers": lambda f: f.mixing[3].mul_(1e30),
    "factors that overflow": lambda f: f.left[3].fill_(3e38),
    "tiny factors": lambda f: f.mixing[3].mul_(1e-40),
    "a NaN": lambda f: f.mixing[3, 0, 1].fill_(math.nan),
    "an infinity": lambda f: f.left[3, 2].fill_(math.inf),
    "an infinite record": lambda f: f.right[3].fill_(-math.inf),
    "a NaN in a record": lambda f: f.right[3, 1].fill_(math.nan),
    "nothing": lambda f: f.right[3].fill_(0.0),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_record_has_norm_1_at_most_and_leaves_the_others_alone(what: str) -> None:
    basis, given = Basis.of(rows(5, 12)), factors(9, 5, 12)
    before = basis.to_grid(given)
    HOSTILE[what](given)
    after = basis.to_grid(given)
    assert squared_norms(after, basis)[3] <= FIXED_POINT_ONE**2
    others = [number for number in range(9) if number != 3]
    for one, other in zip(vars(before).values(), vars(after).values(), strict=True):
        assert torch.equal(one[others], other[others]) and bool(torch.isfinite(other).all())
    if what in ("a NaN", "an infinity", "an infinite record", "a NaN in a record"):
        assert not any(bool(each[3].any()) for each in vars(after).values())


def test_terms_that_cancel_are_bounded_all_the_same() -> None:
    """Q S = -p ⊗ x but for a little: what is left is what is clipped."""
    generator = np.random.Generator(np.random.PCG64(3))
    for nearly in (1e-1, 1e-3, 1e-5, 0.0):
        support = generator.random((6, 10))
        weights = generator.standard_normal((8, 6))
        p = generator.standard_normal((8, 6))
        given = Factors(
            torch.from_numpy(1e3 * p),
            torch.from_numpy(-1e3 * p[:, :, None] * weights[:, None, :] * (1.0 - nearly)),
            torch.from_numpy(weights @ support),
        )
        basis = Basis.of(support)
        assert max(squared_norms(basis.to_grid(given), basis)) <= FIXED_POINT_ONE**2


@pytest.mark.parametrize("case", ["twice the same row", "a row of zeros", "zeros alone", "more rows than numbers"])
def test_rows_may_depend_on_each_other(case: str) -> None:
    support = rows(5, 12)
    support = {
        "twice the same row": np.concatenate([support, support[:1]]),
        "a row of zeros": np.concatenate([support, 0.0 * support[:1]]),
        "zeros alone": 0.0 * support,
        "more rows than numbers": rows(30, 12),
    }[case]
    basis, given = Basis.of(support), factors(9, len(support), 12)
    grid = basis.to_grid(given)
    norms = squared_norms(grid, basis)
    assert max(norms) <= FIXED_POINT_ONE**2 and min(norms) > (0.95 * FIXED_POINT_ONE) ** 2


def total_of(given: Factors, basis: Basis, parts: list[list[int]]) -> NDArray[np.int64]:
    count, width = len(basis.mixing), basis.rows.shape[1]
    number = len(given.left)
    total = FactoredSum(Layout((global_segment("x", count * width, classes=2),)), 1.0, number, SeededEntropy(1), basis)
    for part in parts:
        total.add_factors(np.array(part), Factors(*(each[part] for each in vars(given).values())))
    return privatise(total, NonPrivate(), SeededEntropy(1)).arrays["x"]


def test_sums_are_exact_in_any_order_and_number_of_parts() -> None:
    basis, given = Basis.of(rows(5, 12)), factors(16, 5, 12)
    expected = contributions(basis.to_grid(given), basis).sum(0).ravel().astype(np.int64)
    for parts in (
        [[*range(16)]],
        [[*range(15, -1, -1)]],
        [[number] for number in range(16)],
        [[3, 1], [*range(4, 16)], [0, 2]],
    ):
        np.testing.assert_array_equal(total_of(given, basis, parts)[0], expected)


def test_padding_is_not_added() -> None:
    basis, given = Basis.of(rows(5, 12)), factors(8, 5, 12)
    total = FactoredSum(Layout((global_segment("x", 60, classes=2),)), 1.0, 3, SeededEntropy(1), basis)
    total.add_factors(np.arange(3), given)
    expected = contributions(basis.to_grid(given), basis)[:3].sum(0).ravel().astype(np.int64)
    np.testing.assert_array_equal(privatise(total, NonPrivate(), SeededEntropy(1)).arrays["x"][0], expected)


def test_only_members_are_added_each_once_and_nothing_after_the_noise() -> None:
    basis, layout = Basis.of(rows(5, 12)), Layout((global_segment("x", 60, classes=2),))
    total = FactoredSum(layout, 0.5, 40, SeededEntropy(2), basis)
    members = total.members
    assert 5 < len(members) < 35
    stranger = next(number for number in range(40) if number not in members)
    for wrong in ([stranger], [int(members[0]), int(members[0])]):
        with pytest.raises(ValueError, match="only members"):
            total.add_factors(np.array(wrong), factors(len(wrong), 5, 12))
    with pytest.raises(ValueError, match="factors of its own"):
        total.add_factors(members, factors(len(members) - 1, 5, 12))
    with pytest.raises(TypeError, match="use add_factors"):
        total.add_members(members[:1], np.ones((1, 60)), np.zeros(1, np.int64))
    with pytest.raises(ValueError, match="never added"):
        privatise(total, NonPrivate(), SeededEntropy(1))
    total.add_factors(members, factors(len(members), 5, 12))
    with pytest.raises(ValueError, match="only members"):
        total.add_factors(members[:1], factors(1, 5, 12))
    privatise(total, NonPrivate(), SeededEntropy(1))
    with pytest.raises(RuntimeError, match="privatised already"):
        total.add_factors(members[:1], factors(1, 5, 12))


def test_a_layout_that_does_not_fit_is_refused() -> None:
    basis = Basis.of(rows(5, 12))
    for segment in (global_segment("x", 59, classes=2), class_segment("x", 60, classes=2)):
        with pytest.raises(ValueError, match="one segment of 60 numbers"):
            FactoredSum(Layout((segment,)), 1.0, 1, SeededEntropy(1), basis)
    with pytest.raises(ValueError, match="finite rows"):
        Basis.of(np.array([[1.0, math.nan]]))


def layout_with_rows_beside(share: float) -> Layout:
    first = Segment("x", 60, 1, ((0,), (0,)), factors=(5, 12), norm=math.sqrt(1.0 - share**2))
    return Layout((first, class_segment("beside", 4, classes=2)))


@pytest.mark.parametrize("size", [0.003, 1.0, 1e6])
def test_with_rows_beside_both_parts_together_have_norm_1(size: float) -> None:
    basis, given, layout = Basis.of(rows(5, 12)), factors(30, 5, 12, size=size), layout_with_rows_beside(0.4)
    bound, labels = bound_of(layout.segments[0]), np.arange(30) % 2
    beside = 10.0 * size * rows(30, 4, seed=3)
    of_factors = squared_norms(basis.to_grid(given, bound), basis)
    plain = clip_to_grid(beside, labels, layout).astype(object)
    both = [one + int((other**2).sum()) for one, other in zip(of_factors, plain, strict=True)]
    assert max(both) <= FIXED_POINT_ONE**2 and max(of_factors) <= 0.84 * FIXED_POINT_ONE**2 + 2
    if size > 1.0:
        assert min(both) > 0.93 * FIXED_POINT_ONE**2
    total = FactoredSum(layout, 1.0, 30, SeededEntropy(1), basis)
    for part in np.array_split(np.arange(30), 4):
        total.add_factors(part, Factors(*(each[part] for each in vars(given).values())), (beside[part], labels[part]))
    found = privatise(total, NonPrivate(), SeededEntropy(1)).arrays
    expected = contributions(basis.to_grid(given, bound), basis).sum(0).ravel().astype(np.int64)
    np.testing.assert_array_equal(found["x"][0], expected)
    for label in (0, 1):
        np.testing.assert_array_equal(found["beside"][label], plain[labels == label].sum(0).astype(np.int64))


def test_rows_beside_belong_to_a_layout_that_has_them() -> None:
    basis, given = Basis.of(rows(5, 12)), factors(2, 5, 12)
    beside = (np.ones((2, 4)), np.zeros(2, np.int64))
    alone = FactoredSum(Layout((global_segment("x", 60, classes=2),)), 1.0, 2, SeededEntropy(1), basis)
    with pytest.raises(ValueError, match="rows beside factors"):
        alone.add_factors(np.arange(2), given, beside)
    both = FactoredSum(layout_with_rows_beside(0.4), 1.0, 2, SeededEntropy(1), basis)
    with pytest.raises(ValueError, match="rows beside factors"):
        both.add_factors(np.arange(2), given)
    assert len(both.members) == 2
    no_share = Layout((global_segment("x", 60, classes=2), class_segment("beside", 4, classes=2)))
    with pytest.raises(ValueError, match="one segment of 60 numbers; with others beside, one of factors"):
        FactoredSum(no_share, 1.0, 2, SeededEntropy(1), basis)


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_what_is_longer_than_its_bound_adds_nothing(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were they scaled to a little more than the bound, the check on whole numbers would leave them out."""
    basis, given, layout = Basis.of(rows(5, 12)), factors(9, 5, 12, size=10.0), layout_with_rows_beside(share)
    for room in ("ROOM", "MORE_ROOM"):
        monkeypatch.setattr(f"dpdd.common.privacy.factored.{room}", -0.02)
    grid = basis.to_grid(given, bound_of(layout.segments[0]))
    assert not any(bool(each.any()) for each in (grid.left, grid.mixing))


def test_a_basis_of_few_digits_is_longer_than_1_and_counted_so() -> None:
    """In whole numbers V is not orthonormal any more: along its longest direction contributions are √λ as long."""
    basis = Basis.of(rows(200, 60))
    values, vectors = torch.linalg.eigh(basis.rows @ basis.rows.T)
    assert float(values[-1]) > 1.01 * 4.0**basis.bits, "else there is nothing to count"
    mixing = torch.zeros(1, 200, 200, dtype=torch.float64)
    mixing[0, 0] = 100.0 * vectors[:, -1] @ torch.linalg.pinv(basis.mixing)
    given = Factors(torch.zeros(1, 200), mixing.float(), torch.zeros(1, 60))
    (norm,) = squared_norms(basis.to_grid(given), basis)
    assert 0.9 * FIXED_POINT_ONE**2 < norm <= FIXED_POINT_ONE**2


def test_parts_that_point_the_same_way_add_up_in_the_norm() -> None:
    """p x + Q s, where x is s: twice as long as either part, and four times as much in the square."""
    support = rows(5, 12)
    basis, size = Basis.of(support), torch.tensor([1e-3, 0.3, 1.0, 30.0])
    mixing = size[:, None, None] * torch.eye(5)
    given = Factors(size[:, None].repeat(1, 5), mixing, torch.from_numpy(support[[0] * 4]).float())
    given.left[:, 1:] = 0.0
    assert max(squared_norms(basis.to_grid(given), basis)) <= FIXED_POINT_ONE**2


def test_a_norm_that_cancels_is_not_believed_beyond_its_rounding() -> None:
    """Of terms 10,000 times as long as what is left, the float says anything, nothing included."""
    basis, generator = Basis.of(np.ones((1, 12))), np.random.Generator(np.random.PCG64(1))
    own = generator.uniform(0.5, 1.0, (500, 1)) * 1e4 / math.sqrt(12)
    left = generator.uniform(-3.0, 3.0, (500, 1)) / math.sqrt(12)
    mixing = torch.from_numpy(-(own + left)).float()[:, :, None]
    grid = basis.to_grid(Factors(torch.from_numpy(own).float(), mixing, torch.ones(500, 12)))
    assert max(squared_norms(grid, basis)) <= FIXED_POINT_ONE**2
