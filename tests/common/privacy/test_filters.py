"""The filter's promise: whatever is asked, in whatever order and after whatever answers, (ε, δ) holds for all of it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dpdd.common.privacy import filters
from dpdd.common.privacy.accounting import (
    calibrate,
    gaussian_delta,
    gaussian_releases,
    guarantee,
    rdp_curve,
)
from dpdd.common.privacy.discrete_gaussian import delta_cost, distance, scale_for
from dpdd.common.privacy.events import Event, Gaussian, NonPrivate, PoissonGaussian, compose
from dpdd.common.privacy.filters import Budget, Spending, mode_for, remaining, spent_epsilon, verdict

DELTA = 1e-5
BUDGET = Budget(1.0, DELTA)
RENYI = Budget(1.0, DELTA, "renyi")
CLOSE = 1e-6

_epsilons = st.floats(0.1, 8.0)
_deltas = st.sampled_from([1e-3, 1e-5, 1e-8])


def _admitted(budget: Budget, events: list[Event], each: float = 0.0) -> list[Spending]:
    """What a ledger lets pass when somebody asks for `events` one after the other."""
    spent: list[Spending] = []
    for event in events:
        new = Spending(event, each)
        if verdict(budget, spent, new).fits:
            spent.append(new)
    return spent


# Gaussian mode


@settings(deadline=None, max_examples=60)
@given(_epsilons, _deltas, st.lists(st.floats(0.3, 40.0), min_size=1, max_size=25), st.floats(0, 1e-12))
def test_gaussian_mode_never_admits_more_than_the_exact_budget(
    epsilon: float, delta: float, sigmas: list[float], each: float
) -> None:
    budget = Budget(epsilon, delta, "gaussian")
    spent = _admitted(budget, [Gaussian(sigma) for sigma in sigmas], each)
    mu = math.sqrt(math.fsum(s.event.sigma**-2 for s in spent if isinstance(s.event, Gaussian)))
    paid = (1 + math.exp(epsilon)) * each * len(spent)
    assert gaussian_delta(mu, epsilon) <= (delta - paid) * (1 + 1e-12)
    if spent:
        assert spent_epsilon(budget, spent) <= epsilon * (1 + 1e-9)


@settings(deadline=None, max_examples=40)
@given(_epsilons, _deltas, st.data())
def test_an_adversary_who_always_asks_for_what_is_left_gets_no_more(
    epsilon: float, delta: float, data: st.DataObject
) -> None:
    budget = Budget(epsilon, delta)
    spent: list[Spending] = []
    for _ in range(6):
        left = remaining(budget, spent)
        if left < 1e-3:
            break
        share = data.draw(st.floats(0.05, 1.2))
        asked = Spending(Gaussian(calibrate(gaussian_releases(1), min(left * share, 32.0), delta)), 0.0)
        if verdict(budget, spent, asked).fits:
            spent.append(asked)
    if spent:
        whole = guarantee(compose(*(s.event for s in spent)), delta)
        assert whole.epsilon <= epsilon * (1 + 1e-9)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 40), _epsilons, _deltas)
def test_gaussian_sums_are_exact(releases: int, epsilon: float, delta: float) -> None:
    budget = Budget(epsilon, delta)
    one = Spending(Gaussian(calibrate(gaussian_releases(releases), epsilon, delta)), 0.0)
    assert len(_admitted(budget, [one.event] * (releases + 5))) == releases


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 8.0])
@pytest.mark.parametrize("coordinates", [1, 10_000])
def test_one_release_uses_a_budget_to_the_last_bit(epsilon: float, coordinates: int) -> None:
    """Noise calibrated to δ minus the cost of its own imperfection fits a budget of exactly (ε, δ)."""
    scale = scale_for(calibrate(gaussian_releases(1), epsilon, DELTA) * 2**20)
    sigma = calibrate(gaussian_releases(1), epsilon, DELTA - delta_cost(scale, coordinates, epsilon))
    whole = Spending(Gaussian(sigma), coordinates * distance(scale))
    assert verdict(Budget(epsilon, DELTA), [], whole).fits
    assert not verdict(Budget(epsilon, DELTA), [], Spending(Gaussian(sigma * (1 - 1e-9)), whole.distance)).fits
    assert not verdict(Budget(epsilon, DELTA), [whole], Spending(Gaussian(1e4), 0.0)).fits


def test_the_distance_of_the_noise_is_paid_for() -> None:
    sigma = calibrate(gaussian_releases(1), 1.0, DELTA)
    assert verdict(BUDGET, [], Spending(Gaussian(sigma), 0.0)).fits
    assert not verdict(BUDGET, [], Spending(Gaussian(sigma), 1e-9)).fits
    assert not verdict(BUDGET, [], Spending(Gaussian(1e6), DELTA)).fits
    assert not verdict(RENYI, [], Spending(Gaussian(1e6), DELTA)).fits


def test_a_gaussian_ledger_takes_nothing_else() -> None:
    first = Spending(Gaussian(100.0), 0.0)
    refused = verdict(BUDGET, [first], Spending(PoissonGaussian(100.0, 0.001, 1), 0.0))
    assert not refused.fits and refused.mode == "gaussian" and "plain Gaussian" in refused.why
    strict = Budget(1.0, DELTA, "gaussian")
    assert not verdict(strict, [], Spending(PoissonGaussian(100.0, 0.001, 1), 0.0)).fits


# Rényi mode

_events = st.one_of(
    st.builds(Gaussian, st.floats(3.0, 60.0), st.integers(1, 3)),
    st.builds(PoissonGaussian, st.floats(1.5, 10.0), st.floats(0.001, 0.05), st.sampled_from([1, 50, 300])),
)


@settings(deadline=None, max_examples=8)
@given(st.sampled_from([0.5, 1.0, 4.0]), st.lists(_events, min_size=2, max_size=10))
def test_renyi_mode_never_admits_more_than_the_pld_of_all_of_it(epsilon: float, events: list[Event]) -> None:
    budget = Budget(epsilon, DELTA, "renyi")
    spent = _admitted(budget, events, each=1e-18)
    assume(spent)
    whole = guarantee(compose(*(s.event for s in spent)), DELTA).epsilon
    assert whole <= epsilon
    assert whole <= spent_epsilon(budget, spent) + 1e-3 or mode_for(budget, spent[0]) == "single"
    assert spent_epsilon(budget, spent) <= epsilon


@settings(deadline=None, max_examples=60)
@given(_epsilons, _deltas, st.lists(st.floats(0.5, 40.0), min_size=1, max_size=25))
def test_renyi_mode_on_gaussians_stays_below_the_exact_filter(
    epsilon: float, delta: float, sigmas: list[float]
) -> None:
    budget = Budget(epsilon, delta, "renyi")
    spent = _admitted(budget, [Gaussian(sigma) for sigma in sigmas])
    if spent:
        assert guarantee(compose(*(s.event for s in spent)), delta).epsilon <= epsilon * (1 + 1e-12)


@settings(deadline=None)
@given(st.floats(0.01, 32.0), st.floats(-12, -2).map(lambda x: 10.0**x), st.floats(0.01, 1.0))
def test_the_orders_shares_of_delta_add_up_to_no_more_than_delta(epsilon: float, delta: float, share: float) -> None:
    """From caps back to δ_α by the conversion formula, written out here a second time."""
    left = delta * share
    filter_ = filters._renyi_filter(epsilon, delta, left)
    total = 0.0
    for alpha, cap in zip(filter_.orders, filter_.caps, strict=True):
        assert cap > 0.0 or cap == -math.inf
        total += math.exp((alpha - 1) * (cap - epsilon)) / alpha * (1 - 1 / alpha) ** (alpha - 1)
    assert total <= left * (1 + 1e-9)


@settings(deadline=None)
@given(_epsilons, _epsilons, _deltas, st.floats(0.1, 0.9))
def test_caps_grow_with_the_budget_and_shrink_with_what_delta_pays_for(
    epsilon: float, more: float, delta: float, share: float
) -> None:
    orders, caps = _fixed_caps(epsilon, delta, delta)
    assert np.all(_fixed_caps(epsilon + more, delta, delta)[1] >= caps)
    less = _fixed_caps(epsilon, delta, delta * share)
    assert less[0] == orders and np.all(less[1] <= caps)


def _fixed_caps(epsilon: float, delta: float, left: float) -> tuple[tuple[float, ...], np.ndarray]:
    filter_ = filters._renyi_filter(epsilon, delta, left)
    return filter_.orders[1:], filter_.caps[1:]


@settings(deadline=None)
@given(_epsilons, _deltas, st.floats(0.001, 1.0))
def test_the_orders_are_fixed_by_the_budget_and_not_by_what_was_spent(
    epsilon: float, delta: float, share: float
) -> None:
    """Orders that moved with δ would let answers choose between families of orders that each spend all of δ."""
    assert filters._renyi_filter(epsilon, delta, delta * share).orders == (
        filters._renyi_filter(epsilon, delta, delta).orders
    )


def test_an_order_without_room_admits_nothing_even_if_its_divergence_rounds_to_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    filter_ = filters._renyi_filter(RENYI.epsilon, DELTA, DELTA)
    assert (filter_.caps == -math.inf).any()
    curve = np.where(filter_.caps == -math.inf, 0.0, 1e9)
    monkeypatch.setattr(filters, "rdp_curve", lambda event, orders: curve)
    assert not filters._renyi(RENYI, filters.Spent(), Spending(PoissonGaussian(9.0, 0.01, 1), 0.0)).fits


def test_the_renyi_filter_wastes_little() -> None:
    """A filter that admits nothing would pass the tests above."""
    budget = Budget(1.0, DELTA, "renyi")
    sigma = calibrate(gaussian_releases(10), 0.9, DELTA)
    assert len(_admitted(budget, [Gaussian(sigma)] * 12)) >= 8
    whole = guarantee(PoissonGaussian(3.0, 0.01, 2_000), DELTA).epsilon
    sampled = _admitted(Budget(1.2 * whole, DELTA, "renyi"), [PoissonGaussian(3.0, 0.01, 100)] * 30)
    assert len(sampled) >= 18


def test_admitting_is_summing_curves_below_a_cap() -> None:
    budget, event = Budget(2.0, DELTA, "renyi"), PoissonGaussian(1.5, 0.02, 100)
    filter_ = filters._renyi_filter(2.0, DELTA, DELTA)
    each = rdp_curve(event, filter_.orders)
    expected = int(np.max(np.floor(filter_.caps / each)))
    assert 1 < len(_admitted(budget, [event] * (expected + 5))) == expected


# Single mode


def test_a_first_release_that_only_exact_accounting_admits_closes_the_ledger() -> None:
    first = Spending(PoissonGaussian(3.0, 0.01, 2_000), 1e-15)
    exact = guarantee(first.event, DELTA * (1 - 1e-6)).epsilon
    budget = Budget(exact, DELTA)
    assert mode_for(budget, first) == "single"
    assert not filters._renyi(budget, filters.Spent(), first).fits
    admitted = verdict(budget, [], first)
    assert admitted.fits and admitted.mode == "single"
    assert remaining(budget, [first]) == 0.0
    assert spent_epsilon(budget, [first]) <= exact
    for event in (Gaussian(1e9), PoissonGaussian(1e3, 1e-6, 1)):
        refused = verdict(budget, [first], Spending(event, 0.0))
        assert not refused.fits and refused.remaining == 0.0 and refused.why
    slightly_less = Budget(exact * 0.999, DELTA)
    assert not verdict(slightly_less, [], first).fits
    assert not verdict(budget, [], Spending(first.event, DELTA / 5)).fits  # its distance to ideal noise counts


def test_what_fits_no_accounting_is_refused() -> None:
    assert not verdict(BUDGET, [], Spending(PoissonGaussian(2.0, 0.2, 200), 0.0)).fits
    assert not verdict(RENYI, [], Spending(Gaussian(1.0), 0.0)).fits


# All modes


@settings(deadline=None, max_examples=40)
@given(_epsilons, st.sampled_from(["auto", "gaussian", "renyi"]), st.lists(st.floats(2, 50), max_size=5))
def test_no_noise_never_fits(epsilon: float, composition: filters.Composition, sigmas: list[float]) -> None:
    budget = Budget(epsilon, DELTA, composition)
    spent = _admitted(budget, [Gaussian(s) for s in sigmas])
    for event in (NonPrivate(), compose(Gaussian(100.0), NonPrivate())):
        refused = verdict(budget, spent, Spending(event, 0.0))
        assert not refused.fits and refused.requested == math.inf and refused.why


@settings(deadline=None, max_examples=150)
@given(
    _epsilons,
    _deltas,
    st.sampled_from(["gaussian", "renyi"]),
    st.lists(st.floats(0.5, 40.0), min_size=1, max_size=12),
    st.floats(0.2, 60.0),
)
def test_a_request_is_refused_exactly_when_it_asks_for_more_than_is_left(
    epsilon: float, delta: float, composition: filters.Composition, sigmas: list[float], sigma: float
) -> None:
    budget = Budget(epsilon, delta, composition)
    spent = _admitted(budget, [Gaussian(s) for s in sigmas])
    answer = verdict(budget, spent, Spending(Gaussian(sigma), 0.0))
    assume(answer.mode != "single")
    assert answer.difference == answer.requested - answer.remaining
    if answer.fits:
        assert answer.requested <= answer.remaining + CLOSE
    else:
        assert answer.requested > answer.remaining - CLOSE


@settings(deadline=None, max_examples=30)
@given(_epsilons, st.sampled_from(["gaussian", "renyi"]), st.lists(st.floats(1.0, 40.0), max_size=8))
def test_what_remains_can_be_asked_for(epsilon: float, composition: filters.Composition, sigmas: list[float]) -> None:
    """`remaining` is the ε of one more Gaussian: a little less fits, a little more does not."""
    budget = Budget(epsilon, DELTA, composition)
    spent = _admitted(budget, [Gaussian(s) for s in sigmas])
    left = remaining(budget, spent)
    assume(spent and mode_for(budget, spent[0]) != "single" and 1e-3 < left < 31)
    for share, fits in ((0.999, True), (1.001, False)):
        sigma = calibrate(gaussian_releases(1), left * share, DELTA)
        assert verdict(budget, spent, Spending(Gaussian(sigma), 0.0)).fits is fits


@pytest.mark.parametrize("budget", [BUDGET, RENYI, Budget(4.0, 1e-6, "renyi")])
def test_the_order_of_events_does_not_matter(budget: Budget) -> None:
    events: list[Event] = [Gaussian(20.0), Gaussian(35.0, 2), Gaussian(9.0), Gaussian(14.0)]
    if budget.composition == "renyi":
        events[1] = PoissonGaussian(3.0, 0.01, 50)
    new = Spending(Gaussian(8.0), 1e-18)
    answers = [
        verdict(budget, [Spending(event, 1e-18) for event in order], new) for order in itertools.permutations(events)
    ]
    assert len({answer.fits for answer in answers}) == 1
    for name in ("requested", "remaining"):
        values = [getattr(answer, name) for answer in answers]
        assert max(values) - min(values) < 1e-9
    spent = [
        spent_epsilon(budget, [Spending(event, 1e-18) for event in order]) for order in itertools.permutations(events)
    ]
    assert max(spent) - min(spent) < 1e-9


def test_an_untouched_budget() -> None:
    assert spent_epsilon(BUDGET, []) == 0.0
    assert remaining(BUDGET, []) == 1.0


@pytest.mark.parametrize("composition", ["auto", "gaussian", "renyi"])
@pytest.mark.parametrize("epsilon", [0.5, 4.0, 8.0])
def test_a_distance_costs_one_plus_e_to_the_epsilon_times_itself(composition: str, epsilon: float) -> None:
    """Two neighbours' outputs are each that far from the ideal's, and one of them is weighed with e^ε."""
    budget = Budget(epsilon, DELTA, composition)  # type: ignore[arg-type]
    whole = DELTA / (1.0 + math.exp(epsilon))
    faint = Gaussian(1e6)
    assert verdict(budget, [], Spending(faint, 0.9 * whole)).fits
    assert not verdict(budget, [], Spending(faint, 1.001 * whole)).fits
    assert not verdict(budget, [Spending(faint, 0.6 * whole)], Spending(faint, 0.5 * whole)).fits
    sigma = 2.0 * calibrate(gaussian_releases(1), epsilon, DELTA)
    if composition != "renyi":
        left = DELTA - 0.5 * whole * (1.0 + math.exp(epsilon))
        shown = spent_epsilon(budget, [Spending(Gaussian(sigma), 0.5 * whole)])
        assert shown == pytest.approx(guarantee(Gaussian(sigma), left).epsilon, rel=1e-9)


def test_distances_that_use_up_delta_leave_no_finite_epsilon() -> None:
    spent = [Spending(Gaussian(5.0), 1.0)]
    assert spent_epsilon(BUDGET, spent) == math.inf
    assert remaining(BUDGET, spent) == 0.0
