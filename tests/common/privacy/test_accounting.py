"""The accountants against published figures, against each other, and against two libraries.

Figures without a source are those of `dp_accounting` 0.6 at δ = 1e-5, as are the project's test vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting import dp_event, pld
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from dpdd.common.privacy import accounting
from dpdd.common.privacy.accounting import (
    calibrate,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_releases,
    guarantee,
    largest_mu,
    poisson_steps,
    rdp_curve,
    rdp_guarantee,
)
from dpdd.common.privacy.events import Event, Gaussian, NonPrivate, PoissonGaussian, compose

DELTA = 1e-5


@pytest.fixture(scope="module")
def exact() -> list[float]:
    return [calibrate(gaussian_releases(m), 1.0, DELTA) for m in range(1, 6)]


@pytest.mark.parametrize("releases, sigma", [(1, 4.045), (2, 5.721), (3, 7.007), (4, 8.091), (5, 9.046)])
def test_the_sps_papers_noise_table_is_renyi_accounting(releases: int, sigma: float) -> None:
    ours = calibrate(gaussian_releases(releases), 1.0, DELTA, rdp_guarantee)
    assert ours == pytest.approx(sigma, abs=6e-4)


@pytest.mark.parametrize("releases, sigma", [(1, 3.731), (2, 5.276), (3, 6.462), (4, 7.461), (5, 8.342)])
def test_exact_noise_is_six_to_eight_percent_less(releases: int, sigma: float, exact: list[float]) -> None:
    ours = exact[releases - 1]
    assert ours == pytest.approx(sigma, abs=6e-4)
    renyi = calibrate(gaussian_releases(releases), 1.0, DELTA, rdp_guarantee)
    assert 0.06 < 1.0 - ours / renyi < 0.08


def test_epsilon_eight() -> None:
    assert calibrate(gaussian_releases(1), 8.0, DELTA) == pytest.approx(0.600, abs=6e-4)
    assert calibrate(gaussian_releases(1), 8.0, DELTA, rdp_guarantee) == pytest.approx(0.638, abs=6e-4)


@pytest.mark.parametrize("steps, by_pld, by_rdp", [(10_000, 3.204, 3.463), (2_000, 1.587, 1.701)])
def test_poisson_sampling(steps: int, by_pld: float, by_rdp: float) -> None:
    """The figure to three decimals: σ + 0.0005 is private, σ - 0.0005 is not."""
    for account, sigma in ((guarantee, by_pld), (rdp_guarantee, by_rdp)):
        epsilons = [account(PoissonGaussian(s, 50 / 6000, steps), DELTA).epsilon for s in (sigma - 5e-4, sigma + 5e-4)]
        assert epsilons[1] <= 1.0 < epsilons[0]
        assert epsilons[0] - epsilons[1] < 2e-3


def _clt_mu(sigma: float, rate: float, steps: int) -> float:
    """The central-limit formula (DP-GENG, eq. 9): for comparison only, it is not an upper bound."""
    return rate * math.sqrt(steps * math.expm1(sigma**-2))


def _clt_sigma(mu: float, rate: float, steps: int) -> float:
    """DP-GENG's eq. 10 solved for σ."""
    return math.log1p(mu**2 / (rate**2 * steps)) ** -0.5


def _printed_sigma(mu: float, rate: float, steps: int) -> float:
    """DP-GENG's eq. 11 as printed: the fraction is upside down."""
    return math.log1p(rate**2 * steps / mu**2) ** -0.5


def test_the_central_limit_formula_promises_too_much() -> None:
    rate, steps, mu = 128 / 50_000, 2_000, 1.48
    sigma = _clt_sigma(mu, rate, steps)
    assert _clt_mu(sigma, rate, steps) == pytest.approx(mu)
    claimed = gaussian_epsilon(_clt_mu(sigma, rate, steps), DELTA)
    assert claimed == pytest.approx(6.94, abs=5e-3)
    assert guarantee(PoissonGaussian(sigma, rate, steps), DELTA).epsilon == pytest.approx(9.73, abs=5e-3)


def test_dp_gengs_printed_formula_is_upside_down() -> None:
    rate, steps, mu = 0.1, 2_000, 1.48
    printed = _printed_sigma(mu, rate, steps)
    assert _clt_mu(printed, rate, steps) != pytest.approx(mu, rel=0.5)  # it does not even invert its own eq. 9
    assert guarantee(PoissonGaussian(printed, rate, steps), DELTA).epsilon == pytest.approx(102, abs=0.5)
    right = guarantee(PoissonGaussian(_clt_sigma(mu, rate, steps), rate, steps), DELTA).epsilon
    assert right == pytest.approx(6.94, abs=0.1)


def test_noise_redrawn_over_stored_sums_costs_far_more_than_claimed() -> None:
    """Twenty draws over each of 10,000 stored sums: their mean has σ/√20, over one and the same sample."""
    sigma, rate, sums, draws = 4.2969, 0.01, 10_000, 20
    claimed = guarantee(PoissonGaussian(sigma, rate, sums), DELTA).epsilon
    true = guarantee(PoissonGaussian(sigma / math.sqrt(draws), rate, sums), DELTA).epsilon
    assert 0.8 < claimed <= 1.0
    assert true == pytest.approx(6.7, abs=0.05)
    fresh_samples = guarantee(PoissonGaussian(sigma, rate, sums * draws), DELTA).epsilon
    assert claimed < fresh_samples < true  # even sampling anew for each of the 200,000 draws would not have saved it


@pytest.mark.parametrize("sigma", [0.6, 1.0, 3.731, 20.0])
@pytest.mark.parametrize("releases", [1, 4])
def test_analytic_gaussian_against_privacy_loss_distributions(sigma: float, releases: int) -> None:
    """The PLD is rounded against us on a grid of 1e-4: it lies above the exact figure, and not far above."""
    ours = guarantee(Gaussian(sigma, releases), DELTA)
    accountant = pld.PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(dp_event.GaussianDpEvent(sigma), releases)
    theirs = float(accountant.get_epsilon(DELTA))
    assert ours.accountant == accounting.EXACT
    assert theirs - 2e-4 * releases <= ours.epsilon <= theirs + 1e-9


@pytest.mark.parametrize("mu", [1e-4, 0.01, 0.3, 1.0, 5.0, 40.0])
@pytest.mark.parametrize("epsilon", [0.0, 1e-6, 0.1, 1.0, 8.0, 32.0])
def test_gaussian_delta_against_many_digits(mu: float, epsilon: float) -> None:
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(80):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        true = mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
        assert abs(gaussian_delta(mu, epsilon) - true) <= 1e-11 * true + mpmath.mpf(10) ** -300


@settings(deadline=None)
@given(st.floats(0.02, 32.0), st.floats(-12, -2).map(lambda x: 10.0**x))
def test_largest_mu_and_epsilon_round_towards_privacy(epsilon: float, delta: float) -> None:
    mu = largest_mu(epsilon, delta)
    assert gaussian_delta(mu, epsilon) <= delta < gaussian_delta(mu * (1 + 1e-9), epsilon)
    reported = gaussian_epsilon(mu, delta)
    assert gaussian_delta(mu, reported) <= delta
    assert reported == pytest.approx(epsilon, rel=1e-9)


_gaussians = st.builds(Gaussian, st.floats(2.0, 20.0), st.integers(1, 5))
_poissons = st.builds(PoissonGaussian, st.floats(1.5, 20.0), st.floats(0.001, 0.3), st.sampled_from([1, 10, 100, 1000]))


@settings(deadline=None)
@given(_gaussians, st.sampled_from([1e-3, 1e-5, 1e-8]))
def test_renyi_is_never_below_the_exact_gaussian(event: Gaussian, delta: float) -> None:
    assert rdp_guarantee(event, delta).epsilon >= guarantee(event, delta).epsilon


@settings(max_examples=8, deadline=None)
@given(st.lists(st.one_of(_gaussians, _poissons), min_size=1, max_size=3), st.sampled_from([1e-3, 1e-5]))
def test_renyi_is_never_below_pld(parts: list[Gaussian | PoissonGaussian], delta: float) -> None:
    event = compose(*parts)
    # Both are upper bounds; the PLD's grid of 1e-4 may lift it a little above a tight Rényi figure.
    assert rdp_guarantee(event, delta).epsilon >= guarantee(event, delta).epsilon - 1e-3


@pytest.mark.parametrize(
    "event", [PoissonGaussian(1000.0, 0.01, 100_000), PoissonGaussian(100.0, 0.001, 1_000_000)], ids=str
)
def test_of_two_upper_bounds_the_smaller_counts(event: PoissonGaussian) -> None:
    """Rounding to the grid lifts the loss of so many tiny steps threefold; the central limit says where it lies."""
    found = guarantee(event, DELTA)
    assert found.accountant == accounting.RDP
    assert found.epsilon < 0.5 * accounting._pld_epsilon(event, DELTA)
    assert found.epsilon > gaussian_epsilon(event.rate / event.sigma * math.sqrt(event.steps), DELTA)


@pytest.mark.parametrize("rate", [1e-6, 0.01, 0.5])
@pytest.mark.parametrize("sigma", [1.0, 1e3, 1e6])
@pytest.mark.parametrize("order", [2, 64, 1024])
def test_rounding_never_makes_a_divergence_too_small(rate: float, sigma: float, order: int) -> None:
    """What `dp_accounting` computes in floating point, plus the allowance for it, beside forty digits."""
    (ours,) = rdp_curve(PoissonGaussian(sigma, rate, 1), (float(order),))
    with mpmath.workdps(40):
        q, s = mpmath.mpf(rate), mpmath.mpf(sigma)
        moment = mpmath.fsum(
            mpmath.binomial(order, i) * q**i * (1 - q) ** (order - i) * mpmath.exp((i * i - i) / (2 * s * s))
            for i in range(order + 1)
        )
        true = mpmath.log(moment) / (order - 1)
        assert true <= ours <= true * (1.0 + 1e-9) + 2.0 * accounting._ROUNDING / (order - 1)


@settings(max_examples=4, deadline=None)
@given(_gaussians, _poissons)
def test_a_mixture_costs_at_least_each_part(plain: Gaussian, sampled: PoissonGaussian) -> None:
    together = guarantee(compose(plain, sampled), DELTA)
    assert together.accountant in (accounting.PLD, accounting.RDP)
    assert together.epsilon >= guarantee(plain, DELTA).epsilon - 1e-9
    assert together.epsilon >= guarantee(sampled, DELTA).epsilon - 1e-3
    assert together.epsilon == pytest.approx(guarantee(compose(sampled, plain), DELTA).epsilon, abs=1e-3)


def exact_delta(releases: int, sigma: float, epsilon: float) -> mpmath.mpf:
    """δ to 40 digits: doubles themselves err by some 1e-12 where δ is a small difference."""
    with mpmath.workdps(40):
        mu = mpmath.sqrt(releases) / mpmath.mpf(sigma)
        return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


@settings(deadline=None)
@example(releases=28, epsilon=0.2, delta=1e-9)
@given(st.integers(1, 50), st.floats(0.05, 32.0), st.sampled_from([1e-3, 1e-5, 1e-9]))
def test_calibrated_gaussian_noise_is_the_least_that_passes(releases: int, epsilon: float, delta: float) -> None:
    sigma = calibrate(gaussian_releases(releases), epsilon, delta)
    assert exact_delta(releases, sigma, epsilon) <= mpmath.mpf(delta) * (1 + mpmath.mpf(1e-12))
    assert guarantee(Gaussian(sigma, releases), delta).epsilon <= epsilon * (1 + 1e-11)
    assert guarantee(Gaussian(0.999 * sigma, releases), delta).epsilon > epsilon


def test_a_part_whose_noise_is_fixed_is_calibrated_around_or_refused() -> None:
    def beside(fixed: float) -> Callable[[float], Event]:
        return lambda sigma: compose(Gaussian(sigma), Gaussian(fixed))

    sigma = calibrate(beside(10.0), 1.0, DELTA)
    assert 0.99999 < guarantee(beside(10.0)(sigma), DELTA).epsilon <= 1.0
    assert guarantee(beside(10.0)(sigma * 0.999), DELTA).epsilon > 1.0
    with pytest.raises(ValueError, match="no noise below"):
        calibrate(beside(1.0), 1.0, DELTA)


def test_calibrated_poisson_noise_is_the_least_that_passes() -> None:
    event_of = poisson_steps(0.02, 1000)
    for account in (guarantee, rdp_guarantee):
        sigma = calibrate(event_of, 0.5, DELTA, account)
        assert account(event_of(sigma), DELTA).epsilon <= 0.5
        assert account(event_of(0.999 * sigma), DELTA).epsilon > 0.5


def halved(loss: Callable[[float], float], epsilon: float, low: float, high: float) -> float:
    """Bisection as everybody writes it."""
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if loss(middle) <= epsilon else (middle, high)
    return high


@given(st.floats(0.1, 8.0), st.floats(0.05, 20.0), st.floats(0.3, 6.0), st.floats(0.0, 0.5), st.floats(0.51, 0.99))
def test_the_search_ends_where_bisection_does(
    epsilon: float, scale: float, power: float, floor: float, place: float
) -> None:
    """Whatever the loss is like, as long as it falls; where log ε is a line over log σ, half the questions do."""
    asked: list[float] = []

    def loss(sigma: float) -> float:
        asked.append(sigma)
        return max((scale / sigma) ** power - floor, 0.0)

    high = scale / (epsilon + floor) ** (1.0 / power) / place
    found = accounting._bisected(loss, epsilon, high / 2.0, high)
    assert loss(found) <= epsilon
    assert len(asked) <= 12 or floor > 0.0
    assert found == halved(loss, epsilon, high / 2.0, high)


@given(st.integers(0, 10_000), st.floats(0.51, 0.99))
def test_the_search_ends_on_the_private_side_of_a_loss_with_steps(seed: int, place: float) -> None:
    """Rounding may make a loss rise with the noise: then the result still has a loss of at most ε."""
    high = 1.0 / place

    def loss(sigma: float) -> float:
        cell = int(sigma * 1e7)
        return 1.0 / sigma + 1e-6 * math.sin(cell * 12.9898 + seed) if sigma < high else 0.5

    assert loss(accounting._bisected(loss, 1.0, high / 2.0, high)) <= 1.0


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-8])
def test_calibration_against_dp_accounting_and_opendp(epsilon: float, delta: float) -> None:
    ours = calibrate(gaussian_releases(1), epsilon, delta)
    assert ours == pytest.approx(dp_accounting.get_sigma_gaussian(epsilon, delta), rel=1e-6)
    mechanism = privacy_loss_distribution.from_gaussian_mechanism(ours, value_discretization_interval=1e-4)
    assert epsilon - 1e-9 <= mechanism.get_epsilon_for_delta(delta) <= epsilon + 2e-4

    opendp = pytest.importorskip("opendp.prelude")
    opendp.enable_features("contrib")
    space = opendp.vector_domain(opendp.atom_domain(T=float, nan=False)), opendp.l2_distance(T=float)
    measurement = space >> opendp.m.then_gaussian(ours)
    zcdp = float(measurement.map(1.0))
    curve = opendp.c.make_zCDP_to_approxDP(measurement).map(1.0)
    assert zcdp == pytest.approx(0.5 / ours**2, rel=1e-12)
    assert epsilon <= float(curve.epsilon(delta)) <= 1.2 * epsilon  # OpenDP goes through zCDP: above, by a little


@settings(deadline=None)
@given(st.floats(0.5, 30), st.integers(1, 100))
def test_renyi_curve_of_a_gaussian_is_a_line(sigma: float, releases: int) -> None:
    orders = (1.5, 2.0, 17.0)
    expected = [alpha * releases / (2 * sigma**2) for alpha in orders]
    np.testing.assert_allclose(rdp_curve(Gaussian(sigma, releases), orders), expected, rtol=1e-14)


def test_renyi_curve_adds_up_and_is_never_negative() -> None:
    orders = (1.25, 2.0, 8.0, 64.0)
    one, two = PoissonGaussian(1.3, 0.01, 100), Gaussian(2.0, 3)
    np.testing.assert_allclose(rdp_curve(compose(one, two), orders), rdp_curve(one, orders) + rdp_curve(two, orders))
    for rate in (1e-12, 1e-9, 1e-6, 1e-3):
        assert (rdp_curve(PoissonGaussian(5.0, rate, 1), orders) >= 0.0).all()


def test_sampling_everybody_is_no_sampling() -> None:
    sampled = guarantee(PoissonGaussian(2.0, 1.0, 4), DELTA).epsilon
    assert sampled == pytest.approx(guarantee(Gaussian(2.0, 4), DELTA).epsilon, abs=1e-3)


def test_no_noise_is_no_privacy() -> None:
    for event in (NonPrivate(), compose(Gaussian(5.0), NonPrivate())):
        assert guarantee(event, DELTA).epsilon == math.inf
        assert rdp_guarantee(event, DELTA).epsilon == math.inf
    assert guarantee(compose(PoissonGaussian(5.0, 0.1, 1), NonPrivate()), DELTA).epsilon == math.inf
    assert rdp_curve(NonPrivate(), (2.0,)).tolist() == [math.inf]


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan, math.inf])
def test_a_delta_outside_the_unit_interval_is_refused(delta: float) -> None:
    for call in (guarantee, rdp_guarantee):
        with pytest.raises(ValueError, match="delta lies in"):
            call(Gaussian(1.0), delta)
    with pytest.raises(ValueError, match="delta lies in"):
        calibrate(gaussian_releases(1), 1.0, delta)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, 33.0, math.nan, math.inf])
def test_budgets_that_protect_nobody_are_refused(epsilon: float) -> None:
    with pytest.raises(ValueError, match="epsilon lies in"):
        calibrate(gaussian_releases(1), epsilon, DELTA)


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf, 1e-200, 1e200, "1"])
def test_noise_multipliers_that_cannot_be_accounted_are_refused(sigma: float) -> None:
    with pytest.raises(ValueError, match="noise multiplier"):
        Gaussian(sigma)
    with pytest.raises(ValueError, match="noise multiplier"):
        PoissonGaussian(sigma, 0.1, 1)


@pytest.mark.parametrize("sigma", [1e-15, 1e15])
def test_the_most_extreme_noise_is_still_accounted(sigma: float) -> None:
    expected = math.inf if sigma < 1 else 0.0
    assert guarantee(Gaussian(sigma), DELTA).epsilon == expected
    assert np.isfinite(rdp_curve(Gaussian(sigma), (2.0,))).all()


def test_the_exact_figure_at_delta_from_the_normal_table() -> None:
    """At ε = 0 the mechanism's δ is the total variation distance 2Φ(μ/2) - 1."""
    for mu in (0.1, 1.0, 3.0):
        assert gaussian_delta(mu, 0.0) == pytest.approx(2 * norm.cdf(mu / 2) - 1, rel=1e-12)
