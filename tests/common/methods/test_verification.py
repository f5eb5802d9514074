"""What a release has to be, and ε recomputed: what is tolerated, and no more."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpdd.common.errors import ConfigError, IntegrityError
from dpdd.common.methods.registry import method
from dpdd.common.methods.request_plan import plan_of
from dpdd.common.methods.verification import (
    FLOOR,
    LOOSE,
    check_guarantee,
    check_release,
    expected_of,
    recomputed_guarantee,
    second_opinion,
)
from dpdd.common.privacy.accounting import EXACT, Guarantee, calibrate, gaussian_delta, gaussian_releases
from dpdd.common.privacy.events import Event, Gaussian, PoissonGaussian, compose
from dpdd.common.wire.release import ReleaseHeader
from dpdd.common.wire.request import Kind, ReleaseRequest

MATCHING = {"draws": 100, "networks": 2, "width": 4, "rate": 0.1, "dimensions": 6, "auxiliary_images": 24}


def asked(name: str, settings: dict[str, Any], epsilon: float = 1.0, **more: Any) -> ReleaseRequest:
    own = method(name).settings(settings).on_wire()
    return ReleaseRequest("test", name, own, epsilon, 1e-5, ("ant", "bee", "cat"), (1, 28, 28), 3, **more)


MERF = asked("dp-merf", {"features": 16})
DOSSER = asked("dosser", MATCHING, epsilon=0.3)  # quick to account for
GENERATED = asked("dosser", {**MATCHING, "auxiliary": "generated"}, epsilon=0.3)


def stated(request: ReleaseRequest, **changes: Any) -> ReleaseHeader:
    """What an honest silo states, but for the changes."""
    plan = plan_of(request)
    arrays = {name: (each.dtype, each.shape) for name, each in plan.array_types.items()}
    header = ReleaseHeader(
        "north",
        request.id,
        request.method,
        request.kind,
        plan.event,
        plan.guarantee,
        plan.distance,
        True,
        (),
        "00" * 32,
        None,
        arrays,
    )
    return replace(header, **changes)


def scaled(event: Event, factor: float) -> Event:
    assert isinstance(event, Gaussian | PoissonGaussian)
    return replace(event, sigma=event.sigma * factor)


@pytest.mark.parametrize(
    ("request_", "tolerated"),
    [(MERF, 0.9e-9), (DOSSER, 1.9e-6), (GENERATED, 1.9e-6)],
    ids=["plain", "sampled", "plain, before samples"],
)
def test_sigma_may_differ_as_two_calibrations_may(request_: ReleaseRequest, tolerated: float) -> None:
    plan, expected = plan_of(request_), expected_of(request_)
    for sign in (1.0, -1.0):
        fine = scaled(plan.event, 1.0 + sign * tolerated)
        check_release(stated(request_, event=fine, distance=plan.distance * (1.0 - sign * 4.0 * tolerated)), expected)
        with pytest.raises(IntegrityError, match="silo north sent a release with noise"):
            check_release(stated(request_, event=scaled(plan.event, 1.0 + sign * 1.2 * tolerated)), expected)


def test_rate_and_steps_are_exact() -> None:
    event = plan_of(DOSSER).event
    assert isinstance(event, PoissonGaussian)
    for other in (replace(event, rate=math.nextafter(event.rate, 0.0)), replace(event, steps=event.steps - 1)):
        with pytest.raises(IntegrityError, match="asked for is Poisson"):
            check_release(stated(DOSSER, event=other), expected_of(DOSSER))
    with pytest.raises(IntegrityError, match="noise"):
        check_release(stated(DOSSER, event=compose(event, Gaussian(9.0))), expected_of(DOSSER))


def test_a_set_may_have_fewer_images_and_not_more() -> None:
    values = {"method": dict(MERF.settings), "synthesis": {}, "images_per_class": 2}
    request = replace(MERF, kind=Kind.DISTILLED_SET, settings=values)
    expected = expected_of(request)
    counts = {"counts": ("float32", (3,))}
    for images, fits in ((6, True), (0, True), (7, False)):
        arrays = {"images": ("uint8", (images, 1, 28, 28)), "labels": ("int64", (images,)), **counts}
        if fits:
            check_release(stated(request, arrays=arrays), expected)
        else:
            with pytest.raises(IntegrityError, match=r"images: uint8 of at most \(6, 1, 28, 28\)"):
                check_release(stated(request, arrays=arrays), expected)
    with pytest.raises(IntegrityError, match="arrays"):
        check_release(stated(request, arrays={"images": ("uint8", (6, 1, 28, 29)), **counts}), expected)


def test_an_answer_has_room_for_its_envelope() -> None:
    classes = tuple(f"class {number}" for number in range(10_000))
    expected = expected_of(replace(MERF, classes=classes))
    assert expected.most_bytes - expected.plan.bytes >= 6 * 10_000 + (1 << 16)


def test_what_cannot_be_asked_is_said() -> None:
    for request in (replace(MERF, stage=1), replace(MERF, delta=1e-30), asked("dm", {})):
        with pytest.raises(ConfigError):
            expected_of(request)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("distance", [0.0, 1e-10, 1e-9])
def test_epsilon_is_recomputed_with_the_distance_off_delta(epsilon: float, distance: float) -> None:
    sigma = calibrate(gaussian_releases(3), epsilon, 1e-5)
    found = recomputed_guarantee(Gaussian(sigma, 3), distance, 1e-5)
    left = 1e-5 - (1.0 + math.exp(found.epsilon)) * distance
    assert gaussian_delta(math.sqrt(3.0) / sigma, found.epsilon) <= left
    assert found.epsilon == pytest.approx(epsilon, rel=1e-9) if not distance else found.epsilon > epsilon
    assert (found.delta, found.accountant) == (1e-5, EXACT)


def test_where_the_distance_takes_all_of_delta_there_is_no_epsilon() -> None:
    assert math.isinf(recomputed_guarantee(Gaussian(4.0), 1e-5, 1e-5).epsilon)
    with pytest.raises(IntegrityError, match="costs inf"):
        check_guarantee("north", Guarantee(1.0, 1e-5, EXACT), Gaussian(4.0), 1e-5)


@pytest.mark.parametrize("request_", [MERF, DOSSER, GENERATED, asked("sps", {"features": 16, "stages": 3})])
def test_all_stages_together_cost_what_is_stated(request_: ReleaseRequest) -> None:
    plan = plan_of(request_)
    whole, distance = plan.whole or plan.event, plan.distance if plan.whole_distance is None else plan.whole_distance
    epsilon = request_.epsilon
    assert check_guarantee("north", plan.guarantee, whole, distance).epsilon == pytest.approx(epsilon, rel=1e-5)
    with pytest.raises(IntegrityError, match=f"silo north states ε = {epsilon:g} at δ = 1e-05, and its noise costs"):
        check_guarantee("north", plan.guarantee, compose(whole, plan.event), distance)
    with pytest.raises(IntegrityError, match="silo north states ε"):
        check_guarantee("north", replace(plan.guarantee, epsilon=0.99999 * epsilon), whole, distance)


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 8.0, 32.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 1e-2])
def test_a_second_accountant_agrees_as_far_as_is_stated(epsilon: float, delta: float) -> None:
    sigma = calibrate(gaussian_releases(1), epsilon, delta)
    found = recomputed_guarantee(Gaussian(sigma), 0.0, delta, 2.0 * epsilon)
    second = second_opinion("north", found, Gaussian(sigma), 0.0)
    assert epsilon <= second.epsilon <= LOOSE * epsilon + FLOOR
    for wrong in (replace(found, epsilon=second.epsilon * 1.001), replace(found, epsilon=second.epsilon / 2.5 - 0.04)):
        if wrong.epsilon > 0.0:
            with pytest.raises(IntegrityError, match="two accountants disagree about silo north"):
                second_opinion("north", wrong, Gaussian(sigma), 0.0)


def test_a_second_accountant_of_samples_is_never_far_below() -> None:
    event = plan_of(DOSSER).event
    found = recomputed_guarantee(event, 0.0, 1e-5)
    assert found.epsilon <= second_opinion("north", found, event, 0.0).epsilon < 0.5
    with pytest.raises(IntegrityError, match="disagree"):
        second_opinion("north", replace(found, epsilon=0.5), event, 0.0)


def test_a_header_is_what_the_arrays_are() -> None:
    from tests.common.wire.test_quantise import release

    arrays = {"signal": np.zeros((3, 5), np.int16), "count": np.ones((3, 1))}
    forged = release(arrays)
    for name in ("request_id", "method", "kind", "guarantee", "distance", "releasable", "ledger_entry"):
        object.__setattr__(forged, name, None)
    assert forged.header.arrays == {"signal": ("int16", (3, 5)), "count": ("float64", (3, 1))}
