"""What the kernel sees of images, and how gradients with respect to it are led back to pixels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.dp_kip.descent import descend, free_pixels, start
from dpdd.common.methods.dp_kip.features import AT_ONCE, input_size, inputs_of, network_of, pulled_back, with_backbone
from dpdd.common.methods.dp_kip.settings import GradientSettings
from dpdd.common.methods.registry import method
from dpdd.common.models.choice import AUTO

RUN = RunDescription(("a", "b", "c"), (1, 9, 8), 3, images_per_class=2)
FEATURES = method("dp-kip-features")
SETTINGS = FEATURES.settings({"support_per_class": 2, "steps": 6, "rate": 0.1, "learning_rate": 0.01})


def test_a_gradient_is_led_back_through_the_jacobian() -> None:
    """Its product with a change of pixels is that of the feature gradient with the change of features."""
    network = network_of(SETTINGS, RUN)
    assert network is not None
    generator = np.random.Generator(np.random.PCG64(1))
    images = generator.random((AT_ONCE + 3, *RUN.shape)).astype(np.float32)
    gradient = generator.standard_normal((len(images), input_size(SETTINGS, RUN)))
    back = pulled_back(network, images, gradient)
    assert back.shape == images.shape
    change = generator.standard_normal(images.shape)
    double = network.to(torch.float64)
    try:
        seen = [double.features(torch.from_numpy(images + step * change).double()) for step in (1e-5, -1e-5)]
    finally:
        network.to(torch.float32)
    by_image = ((seen[0] - seen[1]).numpy() / 2e-5 * gradient).sum(1)
    np.testing.assert_allclose((back * change).sum((1, 2, 3)), by_image, rtol=2e-3, atol=2e-3 * np.abs(by_image).max())


def test_steps_go_along_what_is_led_back_and_the_scale_of_sums_does_not_matter() -> None:
    generator = np.random.Generator(np.random.PCG64(1))
    frozen = SETTINGS.model_copy(update={"frozen": 0.3})
    size = 6 * input_size(SETTINGS, RUN)
    assert FEATURES.layout(frozen, RUN, 0).coordinates == size, "all features have noise, whatever pixels are frozen"
    gradients = [generator.standard_normal((1, size)) for _ in range(3)]
    *_, end = descend(gradients, frozen, RUN)
    *_, scaled = descend([1e9 * each for each in gradients], frozen, RUN)
    np.testing.assert_allclose(end, scaled, atol=1e-5)
    moved, free = (end != start(frozen, RUN)).reshape(6, -1), free_pixels(frozen, RUN)
    assert not moved[~free].any() and moved[free].mean() > 0.9
    network, first = network_of(frozen, RUN), next(descend(gradients, frozen, RUN))
    assert network is not None
    down = -np.sign(pulled_back(network, start(frozen, RUN), gradients[0])).reshape(6, -1)
    changes = (first - start(frozen, RUN)).reshape(6, -1)
    inside = free & (first > 0.0).reshape(6, -1) & (first < 1.0).reshape(6, -1)
    np.testing.assert_allclose(changes[inside], 0.01 * down[inside], atol=1e-4)  # Adam's first step has one length


def test_steps_of_unlike_lengths_are_adams() -> None:
    generator = np.random.Generator(np.random.PCG64(2))
    size, network = 6 * input_size(SETTINGS, RUN), network_of(SETTINGS, RUN)
    assert network is not None
    gradients = [length * generator.standard_normal((1, size)) for length in (1.0, 30.0, 0.1)]
    pixels = torch.from_numpy(start(SETTINGS, RUN).copy()).requires_grad_(True)
    optimiser = torch.optim.Adam([pixels], lr=SETTINGS.learning_rate, eps=1e-12)
    for gradient, support in zip(gradients, descend(gradients, SETTINGS, RUN), strict=True):
        pixels.grad = torch.from_numpy(pulled_back(network, pixels.detach().numpy(), gradient))
        optimiser.step()
        with torch.no_grad():
            pixels.clamp_(0.0, 1.0)
        np.testing.assert_allclose(support, pixels.detach().numpy(), atol=1e-4)


def test_pixels_are_their_own_features() -> None:
    settings = GradientSettings()
    assert network_of(settings, RUN) is None and input_size(settings, RUN) == 72
    images = torch.rand(2, 1, 9, 8)
    assert torch.equal(inputs_of(None, images), images.flatten(1))
    assert with_backbone(settings, RUN.shape).backbone == AUTO


def test_a_network_that_is_not_the_pinned_one_or_not_for_such_images_is_refused() -> None:
    with pytest.raises(ConfigError):
        network_of(SETTINGS, replace(RUN, backbone_sha256=bytes(32)))
    with pytest.raises(ConfigError, match="for images of"):
        network_of(SETTINGS.model_copy(update={"backbone": "scatter28"}), RUN)
