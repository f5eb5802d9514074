"""What the paper's own accounting says of a privacy loss. Nothing here is used to promise anything.

Its Theorem 2 and Lemmas 2, 3 and 5: a step on a Poisson sample at rate p, T times, is taken for μ-GDP with

    μ = p √(T (e^(1/σ²) - 1)),        eq. 9, the central limit of many small steps

and the μ of all parts add up as squares. Three things differ from an exact account of adding or removing one record:

- *The limit for the sum* (too little, at the paper's own numbers): p = 128/50,000, T = 2,000 and μ_F = 1.48 are 6.94 by
  eq. 9, and 9.73 by privacy-loss distributions, as 1/σ² is far from small.
- *Theorem 2 upside down* (either way): solved for σ, eq. 10 gives ln(μ²/(p²T) + 1)^(-1/2), and the theorem has
  ln(p²T/μ² + 1)^(-1/2). Where p²T is above μ² that is too little noise, where it is below, as in the paper, too much.
- *The class's rate* (too little): Algorithm 1 draws its batch from one class, which is a rate of B/N_k, and B/N is
  accounted for. Classes are disjoint, so their number does not matter otherwise.

>>> sigma = sigma_by_equation_10(1.48, 128 / 50_000, 2_000)
>>> round(sigma, 3), round(mu_of_steps(sigma, 128 / 50_000, 2_000), 2)
(0.442, 1.48)
>>> sigma_of_theorem_2(1.48, 128 / 50_000, 2_000) > sigma
True
>>> sigma_of_theorem_2(1.48, 0.1, 2_000) < sigma_by_equation_10(1.48, 0.1, 2_000)
True
"""

from __future__ import annotations

import math

from dpdd.common.methods.plan import Plan
from dpdd.common.privacy.accounting import gaussian_epsilon
from dpdd.common.privacy.events import Event, Gaussian, NonPrivate, PoissonGaussian, parts


def mu_of_steps(sigma: float, rate: float, steps: int) -> float:
    """μ_F (eq. 9, Lemma 5): the central limit of `steps` Gaussians on Poisson samples; infinite where e^(1/σ²) is."""
    exponent = 1.0 / sigma**2
    return rate * math.sqrt(steps * math.expm1(exponent)) if exponent < 700.0 else math.inf


def sigma_by_equation_10(mu: float, rate: float, steps: int) -> float:
    """σ_F as it follows from the paper's eq. 10: the noise for which eq. 9 says `mu`."""
    return math.log1p(mu**2 / (rate**2 * steps)) ** -0.5


def sigma_of_theorem_2(mu: float, rate: float, steps: int) -> float:
    """σ_F as Theorem 2 and eq. 11 have it: with the fraction of eq. 10 upside down."""
    return math.log1p(rate**2 * steps / mu**2) ** -0.5


def mu_of(event: Event) -> float:
    """μ of all parts (Lemma 2): plain Gaussians as they are, sampled ones by the central limit."""
    total = 0.0
    for part in parts(event):
        match part:
            case NonPrivate():
                return math.inf
            case Gaussian(sigma, releases):
                total += releases / sigma**2
            case PoissonGaussian(sigma, rate, steps):
                total += mu_of_steps(sigma, rate, steps) ** 2
    return math.sqrt(total)


def epsilon_by_limit(event: Event, delta: float) -> float:
    """ε at `delta` of μ-GDP (Lemma 3) with the μ that the paper's lemmas give."""
    return gaussian_epsilon(mu_of(event), delta)


def epsilon_of(plan: Plan) -> float | None:
    """By the paper's lemmas, for the noise of all stages of a plan; None without noise."""
    event = plan.whole or plan.event
    if any(isinstance(part, NonPrivate) for part in parts(event)):
        return None
    return epsilon_by_limit(event, plan.guarantee.delta)
