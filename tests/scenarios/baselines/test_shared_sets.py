"""FedDM and FedLAP-DP: what is released, how often, and that nothing else of the records is used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dpdd.common.models import backbone as backbones
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.privacy.events import NonPrivate, PoissonGaussian
from dpdd.scenarios.baselines import shared_sets as module
from dpdd.scenarios.baselines.base import Task, prepare
from dpdd.scenarios.baselines.shared_sets import SharedSetsSettings, shared_sets
from dpdd.server.evaluation.scoring import logits_of
from tests.scenarios.small_images import stripes

SMALL = SharedSetsSettings(
    rounds=2, points=2, image_steps=3, path_steps=2, train_steps=5, images_per_class=4, rate=0.5, width=4, depth=2
)


def task_of(small_world: str, seed: int = 0, silos: int = 2) -> Task:
    shares = tuple(np.array_split(np.arange(120), silos))
    return prepare(backbones.load(small_world), stripes(120, seed), stripes(60, 1), shares=shares)


def test_the_event_is_all_draws_of_all_rounds() -> None:
    assert SMALL.event(2.0) == PoissonGaussian(2.0, 0.5, 4)


@pytest.mark.parametrize("signal, sigma", [("gradients", 3.0), ("gradients", None), ("features", None)])
def test_silos_release_draws_of_their_own_records_and_nothing_else(
    small_world: str, monkeypatch: pytest.MonkeyPatch, signal: str, sigma: float | None
) -> None:
    """As often as is accounted for; and other records with the same releases give the same sets and network."""
    settings, task = SMALL.model_copy(update={"signal": signal}), task_of(small_world)
    usual, seen, released = module.released_draws, [], []

    def watched(records: Any, request: Any, *rest: Any) -> Any:
        seen.append((records.features[:], rest[2].event, rest[0].rate, rest[0].draws))
        released.append(usual(records, request, *rest))
        return released[-1]

    monkeypatch.setattr(module, "released_draws", watched)
    first = shared_sets(task, settings, sigma, SeededEntropy(1))
    assert len(seen) == 2 * settings.draws
    expected = NonPrivate() if sigma is None else PoissonGaussian(3.0, 0.5, 1)
    for number, (features, event, rate, draws) in enumerate(seen):
        own = task.shares[(number // settings.points) % 2]
        np.testing.assert_array_equal(features, task.train.images[own])
        assert (event, rate, draws) == (expected, 0.5, 1)
    replayed = iter(released)
    monkeypatch.setattr(module, "released_draws", lambda *_: next(replayed))
    again = shared_sets(task_of(small_world, seed=5), settings, sigma, SeededEntropy(1))
    np.testing.assert_array_equal(first.images.images, again.images.images)
    assert all(torch.equal(one, other) for one, other in zip(first.network.weights, again.network.weights, strict=True))


def test_a_class_that_a_silo_lacks_does_not_count(small_world: str) -> None:
    task = task_of(small_world)
    shares = (np.flatnonzero(task.train.labels < 2), np.flatnonzero(task.train.labels == 2))
    apart = Task(task.backbone, task.train, task.test, shares)
    kept: list[module.SiloSet] = []
    usual = module.trained

    def watched(network: Any, sets: Any, *rest: Any) -> Any:
        kept[:] = sets
        return usual(network, sets, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "trained", watched)
        shared_sets(apart, SMALL.model_copy(update={"rounds": 1}), None, SeededEntropy(1))
    first, second = kept
    assert first.weights[first.labels == 2].sum() == 0.0 < first.weights[first.labels == 0].min()
    assert second.weights[second.labels < 2].sum() == 0.0 < second.weights[second.labels == 2].min()


@pytest.mark.parametrize("signal", ["gradients", "features"])
def test_without_noise_the_network_learns(small_world: str, signal: str) -> None:
    task = task_of(small_world)
    settings = SMALL.model_copy(
        update={"signal": signal, "image_steps": 15, "train_steps": 60, "width": 8, "network_rate": 1e-2, "rate": 1.0}
    )
    shared = shared_sets(task, settings, None, SeededEntropy(2))
    assert task.measured(logits_of(shared, task.test))["accuracy"] > 0.6
    assert shared.images.images.shape == (12, 1, 8, 8) and shared.images.labels.tolist() == [0, 0, 1, 1, 2, 2] * 2
