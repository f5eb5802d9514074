"""What a simulated silo may spend where it is asked for more than one release."""

from __future__ import annotations

from functools import lru_cache

from dpdd.client import stages
from dpdd.common.errors import ConfigError
from dpdd.common.methods.request_plan import plan_of
from dpdd.common.privacy.accounting import LARGEST_EPSILON, calibrate, gaussian_releases
from dpdd.common.privacy.events import Gaussian
from dpdd.common.privacy.filters import Budget, Spending, verdict
from dpdd.common.wire.request import ReleaseRequest, decode_request
from dpdd.server.run.requests import make_request
from dpdd.server.run.scenario import Scenario


def budget_for_both(scenario: Scenario, epsilon: float) -> tuple[float, float]:
    """A budget that admits a simulated silo's release at `epsilon` and then its evaluation.

    ε and δ added up are enough for plain Gaussians, whose filter loses nothing. The Rényi filter, of events that
    sample, loses something: the budget grows until it admits both.
    """
    evaluated = scenario.evaluation.at_silos
    assert evaluated is not None
    delta = scenario.privacy.delta + evaluated.delta
    first = _spending(make_request(scenario, epsilon=epsilon))
    sigma = calibrate(gaussian_releases(1), evaluated.epsilon, evaluated.delta)
    then = Spending(
        Gaussian(0.999 * sigma), first.distance
    )  # a little more than it will be, for the sampler's distance
    total = epsilon + evaluated.epsilon
    while total <= LARGEST_EPSILON:
        budget = Budget(total, delta)
        if verdict(budget, [], first).fits and verdict(budget, [first], then).fits:
            return total, delta
        total *= 1.1
    raise ConfigError(
        f"no budget up to ε = {LARGEST_EPSILON:g} admits {scenario.method.name} at ε = {epsilon:g} and then an "
        f"evaluation at ε = {evaluated.epsilon:g}"
    )


def _spending(request: ReleaseRequest) -> Spending:
    """What a silo sets aside for `request`."""
    return _spent(request.encode())


@lru_cache(maxsize=16)
def _spent(data: bytes) -> Spending:
    return stages.reserved(plan_of(decode_request(data)))
