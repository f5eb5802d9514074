"""DP-GENG's formulas beside an exact account: which of them promise too little, which too much, at which numbers.

Everywhere: δ = 1e-5, adding or removing one record, Poisson samples.
"""

from __future__ import annotations

import math

import pytest

from dpdd.common.methods.dp_geng.published import (
    epsilon_by_limit,
    mu_of,
    mu_of_steps,
    sigma_by_equation_10,
    sigma_of_theorem_2,
)
from dpdd.common.privacy.accounting import gaussian_epsilon, guarantee
from dpdd.common.privacy.events import Gaussian, PoissonGaussian, compose

DELTA = 1e-5
MU, STEPS, RATE = 1.48, 2_000, 128 / 50_000
"""Feature matching at ε = 10: the paper's μ_F, iterations, and batch over all of CIFAR-10."""


def exact(sigma: float, rate: float, steps: int = STEPS) -> float:
    return guarantee(PoissonGaussian(sigma, rate, steps), DELTA).epsilon


@pytest.mark.parametrize("rate", [RATE, 0.1])
def test_equation_10_is_solved_by_one_of_the_two(rate: float) -> None:
    """And Theorem 2 is the other: the two agree only where p²T is μ²."""
    assert mu_of_steps(sigma_by_equation_10(MU, rate, STEPS), rate, STEPS) == pytest.approx(MU)
    assert mu_of_steps(sigma_of_theorem_2(MU, rate, STEPS), rate, STEPS) != pytest.approx(MU, rel=0.1)
    even = MU / math.sqrt(STEPS)
    assert sigma_of_theorem_2(MU, even, STEPS) == pytest.approx(sigma_by_equation_10(MU, even, STEPS))


def test_theorem_2_gives_too_much_noise_where_p2t_is_below_mu2() -> None:
    """At the paper's own numbers: twelve times the noise that eq. 10 asks for."""
    assert RATE**2 * STEPS < MU**2
    theirs, solved = sigma_of_theorem_2(MU, RATE, STEPS), sigma_by_equation_10(MU, RATE, STEPS)
    assert (theirs, solved) == (pytest.approx(12.97, abs=0.1), pytest.approx(0.442, abs=0.001))
    assert exact(theirs, RATE) < 0.1 < gaussian_epsilon(MU, DELTA)


def test_theorem_2_gives_too_little_noise_where_p2t_is_above_mu2() -> None:
    """At p = 0.1 its noise is meant for an ε of 6.9, and has one of about 100."""
    rate = 0.1
    assert rate**2 * STEPS > MU**2
    theirs = sigma_of_theorem_2(MU, rate, STEPS)
    assert theirs < sigma_by_equation_10(MU, rate, STEPS)
    assert gaussian_epsilon(MU, DELTA) == pytest.approx(6.94, abs=0.01)
    assert epsilon_by_limit(PoissonGaussian(theirs, rate, STEPS), DELTA) > 50.0, "by their own eq. 9"
    assert 90.0 < exact(theirs, rate) < 115.0


def test_the_limit_promises_too_little_at_the_papers_numbers() -> None:
    sigma = sigma_by_equation_10(MU, RATE, STEPS)
    assert epsilon_by_limit(PoissonGaussian(sigma, RATE, STEPS), DELTA) == pytest.approx(6.94, abs=0.01)
    assert exact(sigma, RATE) == pytest.approx(9.73, abs=0.02)


def test_the_limit_is_right_where_steps_are_many_and_lose_little() -> None:
    sigma = sigma_by_equation_10(0.3, 0.05, STEPS)
    assert epsilon_by_limit(PoissonGaussian(sigma, 0.05, STEPS), DELTA) == pytest.approx(exact(sigma, 0.05), rel=0.03)


def test_a_batch_of_a_class_is_sampled_at_the_rate_of_the_class() -> None:
    """128 out of a class's 5,000 records, accounted for as 128 out of 50,000: too little."""
    assert exact(0.44, 128 / 50_000) == pytest.approx(9.9, abs=0.1)
    assert exact(0.44, 128 / 5_000) == pytest.approx(67.8, abs=0.3)


def test_the_whole_is_above_ten_if_noise_is_that_of_equation_10() -> None:
    """All parts at the paper's μ, both samplers at 128/50,000: 2,000 iterations, and 20 epochs of the expert."""
    matching, expert = (
        PoissonGaussian(sigma_by_equation_10(mu, RATE, steps), RATE, steps) for mu, steps in ((MU, STEPS), (1.30, 7812))
    )
    whole = compose(Gaussian(1 / 0.27), matching, expert)
    assert epsilon_by_limit(whole, DELTA) == pytest.approx(9.93, abs=0.02)
    assert guarantee(whole, DELTA).epsilon == pytest.approx(11.76, abs=0.03)


def test_parts_add_up_as_squares() -> None:
    """Lemma 2, which is exact for plain Gaussians; and ε of μ = 2.01 is the paper's 10."""
    parts = compose(Gaussian(1 / 0.27), Gaussian(1 / 1.48), Gaussian(1 / 1.30))
    assert mu_of(parts) == pytest.approx(math.hypot(0.27, 1.48, 1.30))
    assert epsilon_by_limit(parts, DELTA) == pytest.approx(guarantee(parts, DELTA).epsilon)
    assert 9.9 < epsilon_by_limit(parts, DELTA) < 10.1
    sampled = PoissonGaussian(0.7, 0.05, 100)
    assert mu_of(compose(Gaussian(2.0), sampled)) == pytest.approx(math.hypot(0.5, mu_of_steps(0.7, 0.05, 100)))
