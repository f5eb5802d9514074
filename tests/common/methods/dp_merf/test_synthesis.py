"""DP-MERF's public half: features with the right kernel, targets from noisy sums, and a generator that learns them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch

from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.dp_merf.settings import MethodSettings, SynthesisSettings
from dpdd.common.methods.dp_merf.specification import embed, frequencies
from dpdd.common.methods.dp_merf.synthesis import class_targets, synthesise
from dpdd.common.synthesis.statistics import Statistics

CLASSES = ("ant", "bee")
SHAPE = (1, 8, 8)
RUN = RunDescription(CLASSES, SHAPE, 1)


def test_features_have_norm_one_and_approximate_the_gaussian_kernel() -> None:
    settings = MethodSettings(features=20_000, length_scale=2.0)
    omega = frequencies(settings, RUN)
    images = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    features = embed(images, omega)
    torch.testing.assert_close(features.norm(dim=1), torch.ones(6), atol=1e-5, rtol=0)
    distances = torch.cdist(images.flatten(1), images.flatten(1))
    torch.testing.assert_close(features @ features.T, torch.exp(-(distances**2) / (2 * 2.0**2)), atol=0.03, rtol=0)


def test_frequencies_are_a_public_function_of_the_seed() -> None:
    settings = MethodSettings(features=32)
    one, same, other = (frequencies(settings, replace(RUN, public_seed=seed)) for seed in (5, 5, 6))
    torch.testing.assert_close(one, same, rtol=0, atol=0)
    assert not torch.equal(one, other)


def test_targets_undo_the_count_weight_and_ignore_classes_lost_in_noise() -> None:
    settings = MethodSettings(features=8, count_weight=0.2)
    mean = np.linspace(-0.2, 0.2, 16)
    sums = np.stack([100 * math.sqrt(1 - 0.04) * mean, np.full(16, 3.0)])
    noisy = Statistics({"embedding": sums, "count": np.array([[100 * 0.2], [0.3]])}, noise=0.5, silos=1)
    means, shares = class_targets(noisy, settings)
    np.testing.assert_allclose(means[0].numpy(), mean, atol=1e-6)
    assert means[1].abs().max() == 0.0
    assert shares.tolist() == [1.0, 0.0]


def statistics_of(images: torch.Tensor, labels: torch.Tensor, settings: MethodSettings) -> Statistics:
    omega = frequencies(settings, RUN)
    features = embed(images, omega) * math.sqrt(1 - settings.count_weight**2)
    sums = torch.stack([features[labels == label].sum(dim=0) for label in range(2)]).double().numpy()
    counts = np.bincount(labels.numpy(), minlength=2)[:, None] * settings.count_weight
    return Statistics({"embedding": sums, "count": counts}, noise=0.0, silos=1)


def test_the_generator_learns_which_class_is_bright() -> None:
    settings = MethodSettings(features=200, length_scale=3.0)
    labels = torch.arange(200) % 2
    images = torch.zeros(200, *SHAPE)
    images[labels == 0, :, :4] = 0.9
    images[labels == 1, :, 4:] = 0.9
    dataset = synthesise(
        [statistics_of(images, labels, settings)],
        settings,
        SynthesisSettings(steps=150, batch=40),
        replace(RUN, images_per_class=5),
    )
    assert dataset.images.shape == (10, 1, 8, 8) and dataset.labels.tolist() == [0] * 5 + [1] * 5
    top, bottom = dataset.images[:, 0, :4].mean(axis=(1, 2)), dataset.images[:, 0, 4:].mean(axis=(1, 2))
    assert (top[:5] > bottom[:5] + 50).all() and (bottom[5:] > top[5:] + 50).all()


def test_synthesis_repeats_and_leaves_the_global_generator_alone() -> None:
    settings = MethodSettings(features=16)
    noisy = Statistics({"embedding": np.zeros((2, 32)), "count": np.full((2, 1), 50.0)}, noise=1.0, silos=1)
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    run = RunDescription(CLASSES, (3, 9, 10), 4, images_per_class=2)
    one, same = (synthesise([noisy], settings, SynthesisSettings(steps=3, batch=8), run) for _ in range(2))
    np.testing.assert_array_equal(one.images, same.images)
    assert one.images.shape == (4, 3, 9, 10)
    assert torch.equal(before, torch.random.get_rng_state())
