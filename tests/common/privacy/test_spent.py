"""Sums that are kept as events come: never below the true ones, and decisions that agree with adding all up again."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdd.common.privacy import filters
from dpdd.common.privacy.accounting import calibrate, gaussian_releases, rdp_curve
from dpdd.common.privacy.events import Event, Gaussian, NonPrivate, PoissonGaussian, compose
from dpdd.common.privacy.filters import Budget, Spending, add, remaining, spent_epsilon, total, verdict
from dpdd.common.privacy.spent import Spent, quotient_up, sum_up
from tests.common.privacy.from_scratch import admits, squared_mu

DELTA = 1e-5
_gaussians = st.builds(Gaussian, st.floats(0.3, 60.0), st.integers(1, 4))
_few = st.sampled_from([Gaussian(9.0), Gaussian(12.5), Gaussian(30.0, 2), compose(Gaussian(9.0), Gaussian(12.5))])
_sampled = st.builds(
    PoissonGaussian, st.sampled_from([3.0, 5.0, 9.0]), st.sampled_from([0.01, 0.002]), st.sampled_from([1, 50])
)
_distances = st.sampled_from([0.0, 1e-18, 3e-13, 1e-9])


@given(st.floats(0.0, 1e30), st.floats(0.0, 1e30))
def test_a_sum_is_rounded_up_and_by_no_more_than_one_step(a: float, b: float) -> None:
    found, exact = sum_up(a, b), Fraction(a) + Fraction(b)
    assert Fraction(found) >= exact
    assert found == 0.0 or Fraction(math.nextafter(found, 0.0)) < exact


@given(st.integers(1, 2**31 - 1), st.floats(1e-15, 1e15))
def test_a_quotient_is_rounded_up(releases: int, sigma: float) -> None:
    found = quotient_up(releases, sigma)
    assert Fraction(found) >= Fraction(releases) / Fraction(sigma) ** 2
    assert found >= releases / sigma**2
    assert found <= releases / sigma**2 * (1 + 1e-15)


@settings(deadline=None, max_examples=150)
@given(
    st.floats(0.1, 8.0),
    st.lists(st.tuples(st.one_of(_gaussians, _few), _distances), min_size=1, max_size=40),
)
def test_gaussian_decisions_agree_with_adding_all_up_again(epsilon: float, asked: list[tuple[Event, float]]) -> None:
    budget, spent, kept = Budget(epsilon, DELTA), Spent(), list[Spending]()
    for event, distance in asked:
        new = Spending(event, distance)
        fits = verdict(budget, spent, new).fits
        assert not fits or admits(budget, kept, new)  # it never errs on the other side ...
        assert fits or not admits(Budget(epsilon, DELTA * (1 - 1e-9)), kept, new)  # ... and on this one by nothing
        if fits:
            spent, kept = add(budget, spent, new), [*kept, new]
            assert Fraction(spent.mu) ** 2 >= squared_mu(kept) * (1 - Fraction(1, 2**51))
            assert Fraction(spent.distance) >= sum(Fraction(each.distance) for each in kept)
    assert spent == total(budget, kept) and spent.count == len(kept)


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from([0.5, 1.0, 4.0]),
    st.lists(st.tuples(st.one_of(_sampled, _few), _distances), min_size=1, max_size=12),
)
def test_renyi_decisions_agree_with_adding_all_up_again(epsilon: float, asked: list[tuple[Event, float]]) -> None:
    budget, spent, kept = Budget(epsilon, DELTA, "renyi"), Spent(), list[Spending]()
    orders = filters._renyi_filter(epsilon, DELTA, DELTA).orders
    for event, distance in asked:
        new = Spending(event, distance)
        fits = verdict(budget, spent, new).fits
        assert not fits or admits(budget, kept, new)
        assert fits or not admits(Budget(epsilon, DELTA * (1 - 1e-9), "renyi"), kept, new)
        if fits:
            spent, kept = add(budget, spent, new), [*kept, new]
            assert spent_epsilon(budget, spent) <= epsilon
            if spent.mode == "renyi":
                curves = [rdp_curve(each.event, orders) for each in kept]
                for order, used in enumerate(spent.divergences):
                    assert Fraction(used) >= sum((Fraction(float(curve[order])) for curve in curves), Fraction(0))


@pytest.mark.parametrize("releases", [1, 3, 7, 100])
def test_equal_releases_fill_a_budget_to_the_last_bit(releases: int) -> None:
    one = Spending(Gaussian(calibrate(gaussian_releases(releases), 1.0, DELTA)), 0.0)
    budget, spent = Budget(1.0, DELTA), Spent()
    for _ in range(releases):
        assert verdict(budget, spent, one).fits
        spent = add(budget, spent, one)
    assert not verdict(budget, spent, one).fits


def test_thousands_of_tiny_events_are_not_lost_in_rounding() -> None:
    """1 + 1e-17 is 1 for floats: whoever rounds to the nearest never sees any number of such events."""
    budget = Budget(8.0, DELTA)
    spent = add(budget, Spent(), Spending(Gaussian(1.0), 0.0))
    for number in range(2000):
        spent = add(budget, spent, Spending(Gaussian(3e8 + number % 2), 0.0))
    assert Fraction(spent.mu) ** 2 > 1 + Fraction(2000) / Fraction(300_000_001) ** 2


@settings(deadline=None, max_examples=50)
@given(st.lists(st.one_of(_gaussians, _sampled), max_size=6), st.sampled_from(["auto", "renyi"]), _distances)
def test_what_was_spent_reads_back_to_the_last_bit(events: list[Event], composition: str, distance: float) -> None:
    budget = Budget(2.0, DELTA, composition)  # type: ignore[arg-type]
    spent = total(budget, [Spending(event, distance) for event in events])
    assert Spent.from_json(json.loads(json.dumps(spent.as_json()))) == spent


@pytest.mark.parametrize("composition", ["gaussian", "renyi"])
def test_nothing_fits_after_a_release_without_noise(composition: str) -> None:
    budget = Budget(1.0, DELTA, composition)  # type: ignore[arg-type]
    for first in (NonPrivate(), compose(Gaussian(9.0), NonPrivate())):
        spent = total(budget, [Spending(first, 0.0)])
        assert not verdict(budget, spent, Spending(Gaussian(1e6), 0.0)).fits
        assert remaining(budget, spent) == 0.0 and spent_epsilon(budget, spent) == math.inf


def test_what_a_filter_never_admits_counts_as_everything() -> None:
    """A sampled event in a ledger of Gaussians can only have been put there from outside."""
    budget = Budget(1.0, DELTA, "gaussian")
    spent = total(budget, [Spending(PoissonGaussian(9.0, 0.01, 10), 0.0)])
    assert remaining(budget, spent) == 0.0 and spent_epsilon(budget, spent) == math.inf


def test_a_budget_that_was_written_off_admits_nothing() -> None:
    closed = Spent(closed=True)
    refused = verdict(Budget(1.0, DELTA), closed, Spending(Gaussian(1e6), 0.0))
    assert not refused.fits and refused.remaining == 0.0 and "written off" in refused.why
    assert remaining(Budget(32.0, DELTA), closed) == 0.0 and spent_epsilon(Budget(1.0, DELTA), closed) == 1.0


def test_sums_at_the_orders_of_another_budget_are_not_mixed_up() -> None:
    with pytest.raises(ValueError):
        add(Budget(1.0, DELTA, "renyi"), Spent(mode="renyi", divergences=(0.0,), count=1), Spending(Gaussian(9.0), 0.0))
    assert np.isfinite(total(Budget(1.0, DELTA, "renyi"), [Spending(Gaussian(9.0), 0.0)]).divergences).all()
