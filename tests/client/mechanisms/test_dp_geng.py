"""DP-GENG's expert in the silo: gradients record by record, and what the release says of the weights."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from dpdd.client.mechanisms import dp_geng
from dpdd.client.mechanisms.dp_geng import MECHANISM
from dpdd.client.records.records import Records
from dpdd.common.errors import ConfigError
from dpdd.common.methods.dp_geng.expert import fresh, vector_of
from dpdd.common.methods.dp_geng.gradients import RecordGradients
from dpdd.common.methods.dp_geng.settings import COUNT, EXPERT, SIZE, MethodSettings
from dpdd.common.methods.dp_geng.specification import schedule, step_length
from dpdd.common.methods.dp_geng.synthesis import expert_weights
from dpdd.common.methods.request_plan import plan_of
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.progress import silent
from dpdd.common.synthesis.statistics import Statistics, of_one_silo
from tests.common.methods.dp_geng.small import NAMES, SHAPE, request_of, settings_of

EVERYBODY = {"rate": 1.0, "expert_rate": 1.0}


def records(count: int = 20) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.Generator(np.random.PCG64(3))
    labels = generator.integers(0, len(NAMES), count)
    images = 0.3 * generator.random((count, *SHAPE))
    images[np.arange(count), :, labels] += 0.6
    return images.astype(np.float32), labels


def released(settings: MethodSettings, epsilon: float, size: float = 20.0, seed: int = 1) -> Statistics:
    """What one silo with `records` releases of the expert."""
    start = vector_of(fresh(settings, SHAPE, len(NAMES), seed=9))
    inputs = {EXPERT: start, SIZE: np.array([size])}
    request = request_of(settings, epsilon, stage=2, inputs=inputs)
    images, labels = records()
    answer = MECHANISM.run(Records(images, labels), request, settings, plan_of(request), SeededEntropy(seed), silent)
    return of_one_silo(answer.arrays, answer.event, inputs)


@pytest.mark.parametrize("norm", ["instance", "group"])
def test_gradients_are_those_of_each_record_alone(norm: Any) -> None:
    network = fresh(settings_of(expert_norm=norm), SHAPE, len(NAMES), seed=1)
    images, labels = (torch.from_numpy(array) for array in records(5))
    alone = copy.deepcopy(network)  # without Opacus' hooks
    rows = RecordGradients(network).of(images, labels)
    weights = list(alone.parameters())
    for row, image, label in zip(rows, images, labels, strict=True):
        own = torch.autograd.grad(functional.cross_entropy(alone(image[None]), label[None]), weights)
        assert torch.allclose(row, torch.cat([part.flatten() for part in own]), atol=1e-5)


def descent(settings: MethodSettings, size: float) -> np.ndarray:
    """DP-SGD without noise over all records, by autograd."""
    network = fresh(settings, SHAPE, len(NAMES), seed=9)
    images, labels = (torch.from_numpy(array) for array in records())
    for share in schedule(settings.expert_steps):
        total = torch.zeros(sum(weight.numel() for weight in network.parameters()))
        for image, label in zip(images, labels, strict=True):
            loss = functional.cross_entropy(network(image[None]), label[None])
            row = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(network.parameters()))])
            total += row * min(1.0, settings.expert_clip / float(row.norm()))
        with torch.no_grad():
            step = settings.expert_learning_rate * share * total / size
            for weight, part in zip(
                network.parameters(), step.split([w.numel() for w in network.parameters()]), strict=True
            ):
                weight -= part.view_as(weight)
    return vector_of(network)


@pytest.mark.parametrize("clip", [0.1, 100.0])
def test_the_release_gives_the_weights_of_dp_sgd(clip: float) -> None:
    settings = settings_of(**EVERYBODY, expert_steps=4, expert_clip=clip, expert_learning_rate=0.5)
    found = expert_weights(released(settings, math.inf), settings, 2)
    expected = descent(settings, 20.0)
    start = vector_of(fresh(settings, SHAPE, len(NAMES), seed=9))
    assert np.abs(found - expected).max() < 0.01 * np.abs(expected - start).max()


def test_steps_follow_the_noisy_weights_and_the_release_has_the_noise_of_one_sum() -> None:
    """The mechanism's own last weights are what a coordinator computes; noise is σ in every released number."""
    settings = settings_of(**EVERYBODY, expert_steps=5, expert_learning_rate=0.01)
    seen: list[np.ndarray] = []
    original = dp_geng.set_vector

    def noted(network: nn.Module, vector: np.ndarray) -> None:
        seen.append(np.array(vector))
        original(network, vector)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dp_geng, "set_vector", noted)
        statistics = released(settings, 1.0)
    share = schedule(5)[-1]
    final = expert_weights(statistics, settings, 2)
    last_step = seen[-1] - final
    assert len(seen) == 6 and not np.array_equal(seen[-1], seen[-2])
    spread = step_length(settings, 20.0) * share * statistics.noise
    assert 0.8 < last_step.std() / spread < 1.2, "the last step is one noisy sum"
    assert 0.8 < statistics.sums["gradient"].std() / statistics.noise < 1.2


def test_counts_are_right_without_noise() -> None:
    settings = settings_of(**EVERYBODY)
    weight = settings.count_share * math.sqrt(settings.expert_steps)
    counts = released(settings, math.inf).sums[COUNT][:, 0] / weight
    assert np.allclose(counts, np.bincount(records()[1]), atol=0.01)


@pytest.mark.parametrize("size", [math.nan, math.inf, -1.0, 0.0])
def test_no_size_or_weights_in_a_request_stop_a_silo(size: float) -> None:
    """They are public, so nonsense costs utility alone."""
    settings = settings_of(**EVERYBODY)
    assert np.isfinite(released(settings, 1.0, size=size).sums["gradient"]).all()


def test_batchnorm_is_refused_with_the_layer_and_the_fix() -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sequential(nn.ReLU(), nn.BatchNorm2d(2)), nn.Flatten())
    with pytest.raises(ConfigError, match=r"layer 1\.1 of the expert is a BatchNorm2d.*give it GroupNorm instead"):
        RecordGradients(network)


def test_a_layer_that_opacus_does_not_know_is_refused_with_its_name_and_the_fix() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.ones(1))

    with pytest.raises(ConfigError, match=r"layer 0 of the expert is a Scale.*use layers that it knows"):
        RecordGradients(nn.Sequential(Scale(), nn.Linear(3, 2)))


def test_a_silo_refuses_batchnorm_before_it_reads_anything() -> None:
    settings = settings_of(**EVERYBODY)
    request = replace(request_of(settings), settings={**settings.on_wire(), "expert_norm": "batch"})
    with pytest.raises(ConfigError, match=r'layer 1 of the expert is a BatchNorm2d.*expert_norm = "group"'):
        plan_of(request)
