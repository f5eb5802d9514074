"""DP-KIP's public half: Adam along noisy gradients, frozen pixels, what stages are asked with, and what all cost."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.dp_kip.descent import descend, free_pixels, labels_of, start
from dpdd.common.methods.dp_kip.settings import GradientSettings
from dpdd.common.methods.registry import method
from dpdd.common.privacy.accounting import guarantee
from dpdd.common.privacy.events import PoissonGaussian
from dpdd.common.synthesis.statistics import Statistics
from dpdd.common.wire.request import ReleaseRequest

RUN = RunDescription(("a", "b", "c"), (1, 4, 5), 3, images_per_class=2)
SETTINGS = GradientSettings(support_per_class=2, steps=6, rate=0.1, learning_rate=0.01)
DPKIP = method("dp-kip")


def gradients(count: int, size: int = 120) -> list[np.ndarray]:
    generator = np.random.Generator(np.random.PCG64(1))
    return [generator.standard_normal((1, size)) for _ in range(count)]


def statistics(count: int, scale: float = 1.0) -> list[Statistics]:
    return [Statistics({"gradient": scale * each}, 1.0, 1) for each in gradients(count)]


def test_it_is_adam_with_pixels_kept_in_range() -> None:
    pixels = torch.from_numpy(start(SETTINGS, RUN).copy()).double().requires_grad_(True)
    optimiser = torch.optim.Adam([pixels], lr=SETTINGS.learning_rate, eps=1e-12)
    for gradient, support in zip(gradients(6), descend(gradients(6), SETTINGS, RUN), strict=True):
        pixels.grad = torch.from_numpy(gradient).view(pixels.shape)
        optimiser.step()
        with torch.no_grad():
            pixels.clamp_(0.0, 1.0)
        np.testing.assert_allclose(support, pixels.detach().numpy(), atol=1e-6)
        assert support.dtype == np.float32 and support.min() >= 0.0 and support.max() <= 1.0


def test_the_scale_of_sums_does_not_matter() -> None:
    one, other = (DPKIP.stage_input(statistics(4, scale), SETTINGS, RUN)["support"] for scale in (1.0, 1e4))
    np.testing.assert_allclose(one, other, atol=1e-6)


def test_a_round_that_silos_missed_has_the_scale_of_the_others() -> None:
    """The mean over those who answered: of silos that say the same, it does not matter how many there were."""
    alike = [
        Statistics({"gradient": silos * each}, 1.0, silos)
        for silos, each in zip((4, 2, 1, 3), gradients(4), strict=True)
    ]
    one, other = (DPKIP.stage_input(each, SETTINGS, RUN)["support"] for each in (statistics(4), alike))
    np.testing.assert_allclose(one, other, atol=1e-6)


def test_round_by_round_is_the_same_as_all_at_once() -> None:
    state = None
    for count, each in enumerate(statistics(6), start=1):
        state, asked = DPKIP.advance(state, each, SETTINGS, RUN)
        at_once = DPKIP.stage_input(statistics(6)[:count], SETTINGS, RUN)
        np.testing.assert_array_equal(asked["support"], at_once["support"])


def test_frozen_pixels_stay_and_are_not_released() -> None:
    frozen = SETTINGS.model_copy(update={"frozen": 0.4})
    free = free_pixels(frozen, RUN)
    assert free.shape == (6, 20) and free.sum() == 72
    assert DPKIP.layout(frozen, RUN, 0).coordinates == 72
    *_, end = descend(gradients(3, 72), frozen, RUN)
    changed = end.reshape(6, 20) != start(frozen, RUN).reshape(6, 20)
    assert not changed[~free].any() and changed[free].mean() > 0.9  # some are at the border of the range
    assert not np.array_equal(free, free_pixels(frozen, replace(RUN, public_seed=4)))


def test_the_set_is_the_mean_of_the_last_support_sets() -> None:
    supports = list(descend(gradients(6), SETTINGS, RUN))
    for last in (1, 3, 99):
        synthesis = DPKIP.synthesis_settings({"average_last": last})
        dataset = DPKIP.synthesise(statistics(6), SETTINGS, synthesis, RUN)
        expected = 255.0 * np.mean([each.astype(np.float64) for each in supports[-last:]], axis=0)
        np.testing.assert_allclose(dataset.records, expected, atol=0.51)
        assert dataset.labels.tolist() == labels_of(SETTINGS, RUN).tolist() == [0, 0, 1, 1, 2, 2]
    fewer = DPKIP.synthesise(statistics(6), SETTINGS, synthesis, replace(RUN, images_per_class=1))
    np.testing.assert_array_equal(fewer.records, dataset.records[::2])


def request(stage: int = 0, epsilon: float = 1.0, **stage_input: np.ndarray) -> ReleaseRequest:
    return ReleaseRequest(
        "run",
        "dp-kip",
        SETTINGS.on_wire(),
        epsilon,
        1e-5,
        RUN.classes,
        RUN.shape,
        3,
        stage=stage,
        stage_input=stage_input,
    )


def test_every_stage_is_one_step_of_the_same_whole() -> None:
    support = start(SETTINGS, RUN)
    plans = [DPKIP.plan(request(), SETTINGS), DPKIP.plan(request(5, support=support), SETTINGS)]
    for plan in plans:
        assert isinstance(plan.event, PoissonGaussian) and (plan.event.rate, plan.event.steps) == (0.1, 1)
        assert plan.whole == PoissonGaussian(plan.event.sigma, 0.1, 6)
        assert plan.whole_distance == pytest.approx(6 * plan.distance)
    assert plans[0].event == plans[1].event
    slack = (1.0 + math.e) * 6 * plans[0].distance
    assert plans[0].whole is not None
    assert 0.98 < guarantee(plans[0].whole, 1e-5 - slack).epsilon <= 1.0


@pytest.mark.parametrize(
    ("stage", "stage_input"),
    [
        (0, {"support": start(SETTINGS, RUN)}),
        (1, {}),
        (1, {"support": start(SETTINGS, RUN)[:-1]}),
        (1, {"support": start(SETTINGS, RUN).astype(np.float64)}),
        (1, {"support": start(SETTINGS, RUN) + np.float32(0.9)}),
        (1, {"support": start(SETTINGS, RUN) * np.float32(np.nan)}),
        (1, {"support": start(SETTINGS, RUN), "more": np.zeros(1)}),
    ],
    ids=str,
)
def test_a_stage_is_asked_with_a_support_set_or_refused(stage: int, stage_input: dict[str, np.ndarray]) -> None:
    with pytest.raises(ConfigError, match="should have pixels"):
        DPKIP.plan(request(stage, **stage_input), SETTINGS)


def test_a_set_that_is_too_large_is_refused() -> None:
    with pytest.raises(ConfigError, match="is too large"):
        DPKIP.layout(GradientSettings(support_per_class=1000), replace(RUN, shape=(3, 64, 64)), 0)
