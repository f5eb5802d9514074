"""DP-SGD over networks: gradients are autograd's, clipped; noise and sampling are those of the event."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from dpdd.common.errors import ConfigError
from dpdd.common.privacy.clipping import GRID
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.scenarios import private_finetune
from dpdd.scenarios.private_features import Features
from dpdd.scenarios.private_finetune import FineTuneSettings, PrivateSteps, SgdSettings
from dpdd.scenarios.private_linear import with_bias
from dpdd.scenarios.private_networks import FreshConvNet, TunedBackbone, has_weights
from tests.scenarios.small_images import stripes, tiny_network

STILL = SgdSettings(at_once=4, batch=8, learning_rate=0.5)


def tuned(kind: str = "convnet", trained: Any = "norms", **more: Any) -> TunedBackbone:
    network = tiny_network(kind)
    weight = torch.randn(3, Features().count(network) + 1, generator=torch.Generator().manual_seed(3))
    return TunedBackbone(network, Features(), weight, trained=trained, **more)


def fresh(seed: int = 0) -> FreshConvNet:
    torch.manual_seed(seed)
    return FreshConvNet((1, 16, 16), 3)


NETWORKS = {
    "norms": (lambda: tuned("convnet"), 8),
    "all": (lambda: tuned("convnet", "all"), 8),
    "wrn": (lambda: tuned("wrn", "all"), 8),
    "fresh": (fresh, 16),
}


def trained(network: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


def flat(network: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trained(network)])


@pytest.mark.parametrize("kind", ["convnet", "wrn"])
@pytest.mark.parametrize("features", [Features(), Features(3), Features(None)])
def test_a_backbone_starts_as_its_linear_classifier(kind: str, features: Features) -> None:
    network, images = tiny_network(kind), torch.from_numpy(stripes(5, 4).images).float() / 255
    weight = torch.randn(3, features.count(network) + 1)
    rows = with_bias(features.of(network, network.features(images)).numpy())
    for reach in (1.0, 7.0):
        found = TunedBackbone(network, features, weight, reach=reach)
        torch.testing.assert_close(found(images), torch.from_numpy(rows).float() @ weight.T, rtol=1e-3, atol=1e-3)
    assert not any("running" in name for name in found.state_dict()), "no statistics that training would change"


def test_what_is_trained_and_what_is_not() -> None:
    norms, everything = (sum(p.numel() for p in trained(tuned(trained=kind))) for kind in ("norms", "all"))
    assert norms == 2 * (4 + 6) + 3 * 7 and everything == norms + 4 * 9 + 6 * 4 * 9
    backbone = tiny_network()
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    network = TunedBackbone(backbone, Features(), torch.zeros(3, 7))
    data = stripes(30, 0)
    private_finetune.train(network, data.images, data.labels, STILL, 2, 0.5, SeededEntropy(0))
    assert all(tensor.equal(before[name]) for name, tensor in backbone.state_dict().items()), "it is a copy"


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("clip", [0.05, 1000.0])
def test_opacus_gradients_are_clipped_as_autograd_would(name: str, clip: float) -> None:
    make, side = NETWORKS[name]
    network, data = make(), stripes(10, 0, side)
    images, labels = torch.from_numpy(data.images), torch.from_numpy(data.labels)
    expected = [torch.zeros_like(p) for p in trained(network)]
    for image, label in zip(images, labels, strict=True):
        loss = functional.cross_entropy(network(image[None].float() / 255), label[None])
        each = torch.autograd.grad(loss, trained(network))
        norm = math.sqrt(sum(float(g.square().sum()) for g in each))
        for total, gradient in zip(expected, each, strict=True):
            total += gradient * min(1.0, clip / norm)
    settings = STILL.model_copy(update={"clip": clip})
    found = PrivateSteps(network, settings).gradient(images, labels, torch.Generator())
    largest = max(float(total.abs().max()) for total in expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.equal(ours.trunc()), "whole steps of the grid"
        torch.testing.assert_close(ours.float() * clip / GRID, theirs, rtol=1e-3, atol=1e-3 * largest + 1e-5 * clip)


@pytest.mark.parametrize("name", ["norms", "all", "fresh"])
def test_one_record_moves_the_sum_by_the_sensitivity_at_most(name: str) -> None:
    make, side = NETWORKS[name]
    network, data = make(), stripes(6, 0, side)
    private = PrivateSteps(network, STILL.model_copy(update={"clip": 0.001, "augmentations": 3, "shift": 1}))
    images, labels = torch.from_numpy(data.images), torch.from_numpy(data.labels)

    def total(keep: list[int]) -> torch.Tensor:  # one at a time, so that each has the same shifts every time
        found = [private.gradient(images[[i]], labels[[i]], torch.Generator().manual_seed(i)) for i in keep] or [
            private.gradient(images[:0], labels[:0], torch.Generator())
        ]
        return torch.stack([torch.cat([g.flatten() for g in each]) for each in found]).sum(0)

    moved = [float((total(list(range(6))) - total([j for j in range(6) if j != i])).norm()) for i in range(6)]
    assert max(moved) <= GRID and max(moved) > 0.99 * GRID
    assert float(total([]).abs().max()) == 0.0, "an empty batch is legal"


def test_a_record_with_an_infinite_gradient_adds_nothing() -> None:
    network, data = tuned(), stripes(4, 0)
    images, labels = torch.from_numpy(data.images), torch.from_numpy(data.labels)
    private = PrivateSteps(network, STILL)
    whole = private.gradient(images, labels, torch.Generator())
    per_example = private._per_example

    def poisoned(*arguments: Any) -> list[torch.Tensor]:
        found = per_example(*arguments)
        found[0][1, 0], found[-1][2, 0] = math.nan, math.inf
        return found

    private._per_example = poisoned  # type: ignore[method-assign]
    rest = private.gradient(images, labels, torch.Generator())
    del private._per_example
    alone = private.gradient(images[[0, 3]], labels[[0, 3]], torch.Generator())
    assert all(torch.isfinite(g).all() for g in rest) and not rest[-1].equal(whole[-1])
    for ours, theirs in zip(rest, alone, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=30.0)


def test_copies_of_a_record_are_averaged_before_clipping() -> None:
    network, data = tuned(), stripes(5, 0)
    images, labels, sums = torch.from_numpy(data.images), torch.from_numpy(data.labels), []
    for copies in (1, 4):  # without shifts all copies are the same
        private = PrivateSteps(network, STILL.model_copy(update={"clip": 100.0, "augmentations": copies}))
        sums.append(torch.cat([g.flatten() for g in private.gradient(images, labels, torch.Generator())]))
        private.close()
    torch.testing.assert_close(sums[0], sums[1], rtol=1e-3, atol=10.0)
    assert sums[0].abs().max() > 1000.0


@pytest.mark.parametrize("factor", [1.0, 0.7, 1.3, 0.0])
def test_dp_sgd_adds_the_noise_it_should(factor: float) -> None:
    network, data = tuned("wrn", "all"), stripes(1, 0)
    before = flat(network)
    settings = STILL.model_copy(update={"learning_rate": 1.0, "momentum": 0.0, "clip": 0.5, "batch": 1})
    # One step over one record: it moves the weights by norm 0.5 at most, the noise by 3 x 0.5 in each of 10^5.
    private_finetune.train(network, data.images, data.labels, settings, 1, 3.0 * factor, SeededEntropy(2))
    moved = flat(network) - before
    assert (abs(float(moved.std()) / 1.5 - 1.0) < 0.05) == (factor == 1.0)
    assert (float(moved.norm()) <= 0.5 * (1 + 1e-5)) == (factor == 0.0)


def test_batches_are_poisson_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    data, sizes = stripes(400, 0), []

    def counted(self: PrivateSteps, images: torch.Tensor, labels: torch.Tensor, _: Any) -> list[torch.Tensor]:
        sizes.append(len(images))
        return [torch.zeros(p.shape, dtype=torch.float64) for p in self.parameters]

    monkeypatch.setattr(PrivateSteps, "gradient", counted)
    settings = STILL.model_copy(update={"batch": 40})
    private_finetune.train(tuned(), data.images, data.labels, settings, 150, 1.0, SeededEntropy(0))
    assert np.mean(sizes) == pytest.approx(40, abs=2) and np.std(sizes) == pytest.approx(6, abs=1.5), "√(400·0.1·0.9)"


@pytest.mark.parametrize("name, rate", [("norms", 0.1), ("fresh", 1.0)])
def test_dp_sgd_learns_and_keeps_its_time(name: str, rate: float) -> None:
    side = NETWORKS[name][1]
    network = fresh() if name == "fresh" else TunedBackbone(tiny_network(), Features(), torch.zeros(3, 7), reach=3.0)
    data, test = stripes(300, 0, side), stripes(90, 1, side)
    settings = STILL.model_copy(update={"batch": 100, "at_once": 100, "learning_rate": rate})
    assert private_finetune.steps_in(1e-9, network, data.shape, settings) == 1
    assert private_finetune.steps_in(math.inf, network, data.shape, settings) == settings.steps
    done = private_finetune.train(network, data.images, data.labels, settings, 30, 0.3, SeededEntropy(0))
    assert done == 30 and private_finetune.accuracy(network, test.images, test.labels) > 0.8
    ended = private_finetune.train(network, data.images, data.labels, settings, 30, 0.3, SeededEntropy(0), minutes=0)
    assert ended == 1


def test_a_fresh_network_wants_images_that_it_can_halve() -> None:
    for side in (16, 17, 28, 32):
        assert FreshConvNet((3, side, side), 10)(torch.zeros(2, 3, side, side)).shape == (2, 10)
    with pytest.raises(ConfigError, match="16 x 16 pixels or more, not 8 x 8"):
        FreshConvNet((1, 8, 8), 3)


def test_only_networks_with_weights_can_be_fine_tuned() -> None:
    from dpdd.common.models import backbone as backbones

    assert has_weights(tiny_network("wrn")) and has_weights(tiny_network())
    assert not has_weights(backbones.load("scatter28").network)


def test_fine_tuning_has_a_first_phase_of_its_own() -> None:
    assert isinstance(FineTuneSettings(), SgdSettings) and 0 < FineTuneSettings().head_share < 1
