"""DP-SGD from scratch and DP-FedAvg: whose records a step reads, how much noise it adds, and what a record moves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpdd.common.privacy.clipping import FIXED_POINT_ONE
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.privacy.events import PoissonGaussian
from dpdd.scenarios.baselines import dp_sgd
from dpdd.scenarios.baselines.private_finetune import PrivateSteps
from tests.scenarios.small_images import stripes

SMALL = dp_sgd.DPSGDSettings(width=4, local_steps=1, rate=1.0, learning_rate=1.0, momentum=0.0, clip=0.5)


def flat(network: dp_sgd.ScratchNet) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in network.trained()])


def fresh(settings: dp_sgd.DPSGDSettings) -> dp_sgd.ScratchNet:
    return dp_sgd.ScratchNet((1, 8, 8), 3, settings, seed=0)


def test_the_event_is_all_steps_of_all_rounds() -> None:
    assert SMALL.model_copy(update={"rounds": 7, "local_steps": 3, "rate": 0.1}).event(2.0) == PoissonGaussian(
        2.0, 0.1, 21
    )


def test_no_layer_mixes_records() -> None:
    network, images = fresh(SMALL), torch.rand(5, 1, 8, 8)
    torch.testing.assert_close(network(images)[2:3], network(images[2:3]))


def test_one_record_moves_the_sum_by_the_sensitivity_at_most() -> None:
    data, settings = stripes(12, 0), SMALL.model_copy(update={"clip": 0.01, "at_once": 8})
    private = PrivateSteps(fresh(settings), settings)
    images, labels = torch.from_numpy(data.images), torch.from_numpy(data.labels)

    def total(keep: list[int]) -> torch.Tensor:
        return torch.cat([g.flatten() for g in private.gradient(images[keep], labels[keep], torch.Generator())])

    every = list(range(12))
    moved = [float((total(every) - total([j for j in every if j != i])).norm()) for i in (0, 7, 8, 11)]
    assert max(moved) <= FIXED_POINT_ONE and max(moved) > 0.99 * FIXED_POINT_ONE
    private.close()


@pytest.mark.parametrize("silos", [1, 4])
@pytest.mark.parametrize("factor", [1.0, 0.7, 1.3])
def test_every_silo_adds_the_noise_it_should(factor: float, silos: int) -> None:
    """One record each, which moves the weights by 0.5 at most; the noise by 30 x 0.5 in each of 500."""
    settings, data = SMALL.model_copy(update={"width": 12}), stripes(silos, 0)
    network, shares = fresh(settings), [np.array([at]) for at in range(silos)]
    arrived = dp_sgd.federated(network, data.images, data.labels, shares, settings, 30.0 * factor, SeededEntropy(5))
    moved = float((flat(arrived) - flat(network)).std())
    expected = settings.learning_rate * 30.0 * settings.clip / np.sqrt(silos)
    assert (abs(moved / expected - 1.0) < 0.1) == (factor == 1.0)


def test_a_silo_reads_its_own_records_and_a_sample_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    data, settings = stripes(60, 0), SMALL.model_copy(update={"rounds": 2, "local_steps": 3, "rate": 0.3})
    data.images[:, 0, 0, 0] = np.arange(60)  # every record says its number
    shares, seen = [np.arange(0, 30), np.arange(30, 50)], []
    usual = PrivateSteps.gradient

    def watched(self: PrivateSteps, images: torch.Tensor, labels: torch.Tensor, generator: torch.Generator) -> object:
        seen.append(images[:, 0, 0, 0].tolist())
        return usual(self, images, labels, generator)

    monkeypatch.setattr(PrivateSteps, "gradient", watched)
    dp_sgd.federated(fresh(settings), data.images, data.labels, shares, settings, 1.0, SeededEntropy(1))
    assert len(seen) == 2 * 2 * 3
    for call, numbers in enumerate(seen):
        own = shares[(call // 3) % 2]
        assert set(numbers) <= set(own.tolist()) and len(numbers) < len(own)
    assert len({tuple(numbers) for numbers in seen}) == len(seen), "a sample for every step"


def test_it_learns_where_noise_is_small() -> None:
    data, test = stripes(150, 0), stripes(60, 1)
    settings = SMALL.model_copy(update={"rounds": 5, "local_steps": 6, "width": 8, "clip": 1.0, "rate": 0.5})
    shares = np.array_split(np.arange(150), 2)
    trained = dp_sgd.federated(fresh(settings), data.images, data.labels, shares, settings, 0.01, SeededEntropy(1))
    with torch.no_grad():
        named = trained(torch.from_numpy(test.images).float() / 255).argmax(dim=1).numpy()
    assert (named == test.labels).mean() > 0.8
