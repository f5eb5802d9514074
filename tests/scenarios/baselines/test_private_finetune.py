"""DP-SGD fine-tuning: per-record gradients, their exact sensitivity, and the noise of the event."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from dpdd.common.privacy.accounting import guarantee
from dpdd.common.privacy.clipping import FIXED_POINT_ONE
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.privacy.events import PoissonGaussian
from dpdd.scenarios.baselines import private_finetune
from dpdd.scenarios.baselines.private_linear import LogisticSettings, with_bias
from dpdd.scenarios.baselines.public_features import extracted
from tests.scenarios.small_images import stripes, tiny_network

STILL = private_finetune.FineTuneSettings(shift=0, at_once=4, batch=8)


def tunable(kind: str, weights: Any = "all", spread: float = 1.0) -> private_finetune.Tunable:
    network = tiny_network(kind)
    network.whitening.fit(torch.randn(500, network.whitening.dimensions, generator=torch.Generator().manual_seed(0)))
    head = np.random.default_rng(0).normal(size=(3, network.whitening.dimensions + 1)) * spread
    return private_finetune.Tunable(network, head, weights)


@pytest.mark.parametrize("kind", ["convnet", "wrn"])
def test_a_tunable_network_starts_as_the_linear_classifier_of_the_backbone(kind: str) -> None:
    network, images, head = tiny_network(kind), stripes(5, 0).images, np.random.default_rng(0)
    network.whitening.fit(torch.randn(500, network.whitening.dimensions))
    weight = head.normal(size=(3, network.whitening.dimensions + 1))
    expected = with_bias(extracted(network, images, "")) @ weight.T
    tuned = private_finetune.Tunable(network, weight, "all")
    logits = tuned(torch.from_numpy(images).float() / 255).detach().numpy()
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-4)
    assert not any("running" in name for name in tuned.state_dict())


@pytest.mark.parametrize("weights", ["all", "norms"])
@pytest.mark.parametrize("kind, clip", [("convnet", 0.05), ("convnet", 100.0), ("wrn", 0.5)])
def test_opacus_gradients_are_clipped_as_autograd_would(kind: str, clip: float, weights: str) -> None:
    network, data = tunable(kind, weights), stripes(10, 0)
    assert any(p.ndim == 4 for p in network.trained()) == (weights == "all")
    images, labels = torch.from_numpy(data.images), torch.from_numpy(data.labels)
    expected = [torch.zeros_like(p) for p in network.trained()]
    for image, label in zip(images, labels, strict=True):
        loss = functional.cross_entropy(network(image[None].float() / 255), label[None])
        each = torch.autograd.grad(loss, network.trained())
        norm = math.sqrt(sum(float(g.square().sum()) for g in each))
        for total, gradient in zip(expected, each, strict=True):
            total += gradient * min(1.0, clip / norm)
    settings = STILL.model_copy(update={"clip": clip})
    gradients = private_finetune.PrivateSteps(network, settings).gradient(images, labels, torch.Generator())
    for ours, theirs in zip(gradients, expected, strict=True):
        assert ours.equal(ours.trunc()), "whole steps of the grid"
        torch.testing.assert_close(ours.float() * clip / FIXED_POINT_ONE, theirs, rtol=1e-3, atol=1e-4 * clip)


@pytest.mark.parametrize("weights", ["all", "norms"])
def test_one_record_moves_the_opacus_sum_by_the_sensitivity_at_most(weights: str) -> None:
    network, data = tunable("convnet", weights, spread=30.0), stripes(40, 0)
    settings = STILL.model_copy(update={"clip": 0.01, "augmentations": 3, "at_once": 32})
    private = private_finetune.PrivateSteps(network, settings)
    images, labels = torch.from_numpy(data.images), torch.from_numpy(data.labels)

    def total(keep: list[int]) -> torch.Tensor:
        return torch.cat([g.flatten() for g in private.gradient(images[keep], labels[keep], torch.Generator())])

    every = list(range(40))
    moved = [float((total(every) - total([j for j in every if j != i])).norm()) for i in (0, 15, 16, 31, 32, 39)]
    assert max(moved) <= FIXED_POINT_ONE and max(moved) > 0.99 * FIXED_POINT_ONE
    assert float(total([]).abs().max()) == 0.0, "an empty batch is legal"


def test_a_record_without_a_usable_gradient_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    network, data = tunable("convnet"), stripes(5, 0)
    private = private_finetune.PrivateSteps(network, STILL)
    usual = private._per_example
    images, labels = torch.from_numpy(data.images), torch.from_numpy(data.labels)
    clean = private.gradient(images[1:], labels[1:], torch.Generator())

    def spoilt(*arguments: object) -> list[torch.Tensor]:
        each = usual(*arguments)  # type: ignore[arg-type]
        each[0][0] = math.inf
        each[1][0] = math.nan
        return each

    private.settings = STILL.model_copy(update={"at_once": 5})
    monkeypatch.setattr(private, "_per_example", spoilt)
    for ours, theirs in zip(private.gradient(images, labels, torch.Generator()), clean, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=5.0)


def test_one_record_more_does_not_change_a_bit_of_the_others_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    network, data = tunable("convnet"), stripes(6, 0)
    private = private_finetune.PrivateSteps(network, STILL)
    usual, images, labels = private._per_example, torch.from_numpy(data.images), torch.from_numpy(data.labels)
    seen: list[list[torch.Tensor]] = []

    def watched(*arguments: object) -> list[torch.Tensor]:
        each = usual(*arguments)  # type: ignore[arg-type]
        seen.append([gradients.clone() for gradients in each])
        return each

    monkeypatch.setattr(private, "_per_example", watched)
    for count in (5, 6):
        private.gradient(images[:count], labels[:count], torch.Generator())
    assert [len(each[0]) for each in seen] == [4, 4, 4, 4]
    for fewer, more in zip(seen[1], seen[3], strict=True):
        assert torch.equal(fewer[0], more[0])


def test_sums_over_many_records_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """All gradients point one way: float32 would round the sum of 33 odd numbers beyond 2^24."""
    network, data = tunable("convnet"), stripes(33, 0)
    private = private_finetune.PrivateSteps(network, STILL.model_copy(update={"at_once": 33}))

    def alike(*_arguments: object) -> list[torch.Tensor]:
        each = [torch.zeros(33, *parameter.shape) for parameter in network.trained()]
        each[0].flatten(1)[:, 0] = 1.0
        return each

    monkeypatch.setattr(private, "_per_example", alike)
    total = private.gradient(torch.from_numpy(data.images), torch.from_numpy(data.labels), torch.Generator())
    one = int(FIXED_POINT_ONE * (1.0 - 1e-5))
    assert one % 2 == 1 and 33 * one > 2**24
    assert int(total[0].flatten()[0]) == 33 * one


@pytest.mark.parametrize("length", [1, 255, 256, 257, 5000])
def test_squares_of_long_rows_are_right_to_more_than_the_margin(length: int) -> None:
    rows = torch.randn(7, length) * torch.logspace(-4, 4, 7)[:, None]
    ours, exact = private_finetune._squares(rows), rows.double().square().sum(dim=1)
    assert float((ours / exact - 1.0).abs().max()) < 1e-6


def test_copies_of_a_record_are_averaged_before_clipping() -> None:
    network, data = tunable("convnet"), stripes(5, 0)
    images, labels, sums = torch.from_numpy(data.images), torch.from_numpy(data.labels), []
    for copies in (1, 4):  # without shifts all copies are the same
        settings = STILL.model_copy(update={"clip": 100.0, "augmentations": copies})
        private = private_finetune.PrivateSteps(network, settings)
        sums.append(torch.cat([g.flatten() for g in private.gradient(images, labels, torch.Generator())]))
        private.close()
    torch.testing.assert_close(sums[0], sums[1], rtol=1e-3, atol=10.0)
    assert sums[0].abs().max() > 1000.0


def flat(network: private_finetune.Tunable) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in network.trained()[:-1]])


@pytest.mark.parametrize("factor", [1.0, 0.7, 1.3])
def test_dp_sgd_adds_the_noise_it_should(factor: float) -> None:
    network, data = tunable("wrn"), stripes(1, 0)
    before = flat(network)
    settings = STILL.model_copy(update={"learning_rate": 1.0, "momentum": 0.0, "clip": 0.5, "batch": 1})
    # One step over one record: it moves the weights by norm 0.5 at most, the noise by 3 x 0.5 in each of 10^5.
    noise = private_finetune.Noise(1.0, 3.0 * factor, 1.0, 1)
    private_finetune.train(network, data.images, data.labels, settings, noise, SeededEntropy(2))
    moved = flat(network) - before
    assert (abs(float(moved.std()) / 1.5 - 1.0) < 0.05) == (factor == 1.0)


@pytest.mark.parametrize("weights", ["all", "norms"])
def test_dp_sgd_learns_and_keeps_its_time(weights: str) -> None:
    network, data, test = tunable("convnet", weights, spread=0.0), stripes(300, 0), stripes(90, 1)
    rates = {"learning_rate": 0.2, "head_rate": 0.5}
    settings = STILL.model_copy(update={"batch": 60, "at_once": 60, **rates})
    assert private_finetune.steps_in(1e-9, network, (1, 8, 8), settings) == 1
    noise = private_finetune.Noise(1.0, 0.1, 0.2, 60)
    done = private_finetune.train(network, data.images, data.labels, settings, noise, SeededEntropy(0))
    answers = network(torch.from_numpy(test.images).float() / 255).argmax(1).numpy()
    assert done == 60 and (answers == test.labels).mean() > 0.8
    ended = private_finetune.train(network, data.images, data.labels, settings, noise, SeededEntropy(0), minutes=0)
    assert ended == 1


@pytest.mark.parametrize("share", [pytest.param(0.05, marks=pytest.mark.slow), 0.9])
def test_both_parts_of_fine_tuning_cost_the_budget_together(share: float) -> None:
    settings = private_finetune.FineTuneSettings(share=share, batch=500, head=LogisticSettings(steps=20))
    noise = private_finetune.planned(5000, 5, settings, 1.0, 1e-5)
    assert 0.999 < guarantee(noise.event(settings), 1e-5).epsilon <= 1.0 + 1e-9
    parts = settings.head.event(noise.head), PoissonGaussian(noise.network, noise.rate, noise.steps)
    alone = [guarantee(part, 1e-5).epsilon for part in parts]
    assert max(alone) < 1.0 < sum(alone)
    assert (alone[1] > alone[0]) == (share > 0.5)
