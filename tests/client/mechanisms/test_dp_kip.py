"""DP-KIP in a silo: gradients are those of the records' losses, and many steps make a set that teaches."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dpdd.client import local_synthesis
from dpdd.client.mechanisms.dp_kip import MECHANISM
from dpdd.client.records.records import Records
from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.dp_kip.descent import free_pixels, labels_of, start
from dpdd.common.methods.dp_kip.features import network_of
from dpdd.common.methods.dp_kip.kernels import FeatureKernel, FullyConnectedNTK, centred, predictions
from dpdd.common.methods.dp_kip.settings import GradientSettings
from dpdd.common.methods.registry import method
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.privacy.privatise import in_units
from dpdd.common.progress import silent
from dpdd.common.synthesis.distilled_set import DistilledSetSettings
from dpdd.common.wire.request import Kind, ReleaseRequest

CLASSES, SHAPE = ("a", "b", "c"), (1, 6, 6)
DPKIP = method("dp-kip")
RUN28 = RunDescription(CLASSES, (1, 28, 28), 3)


def blobs(count: int, seed: int, shape: tuple[int, ...] = SHAPE) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    generator = np.random.Generator(np.random.PCG64(seed))
    labels = np.arange(count) % 3
    images = 0.6 * generator.random((count, *shape))
    for label in range(3):
        images[labels == label, :, :, 2 * label : 2 * label + 2] += 0.3
    return images.astype(np.float32), labels.astype(np.int64)


def request(settings: GradientSettings, kind: Kind, epsilon: float = math.inf) -> ReleaseRequest:
    values = settings.on_wire()
    if kind is Kind.DISTILLED_SET:
        values = DistilledSetSettings(method=values, synthesis={"average_last": 5}, images_per_class=2).on_wire()
    return ReleaseRequest("run", "dp-kip", values, epsilon, 1e-5, CLASSES, SHAPE, 3, kind=kind)


def expected_sum(settings: GradientSettings, images: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray:
    """By a backward pass for each record, in double precision where the kernel allows it."""
    run = RunDescription(CLASSES, images.shape[1:], 3)
    network = network_of(settings, run)
    pixels, dtype = torch.from_numpy(start(settings, run).copy()), torch.float32 if network else torch.float64
    kernel = FeatureKernel(network.features) if network else FullyConnectedNTK(settings.depth)
    if settings.clip_in == "features":
        assert network is not None
        with torch.no_grad():
            pixels, kernel = network.features(pixels).double(), FeatureKernel(lambda each: each)
        dtype = torch.float64
    targets = centred(torch.from_numpy(labels_of(settings, run)), 3).to(dtype)
    support, total = pixels.to(dtype).requires_grad_(True), 0.0
    for image, label in zip(images, labels, strict=True):
        record, wanted = torch.from_numpy(image[None]), centred(torch.tensor([label]), 3).to(dtype)
        if settings.clip_in == "features":
            assert network is not None
            record = network.features(record)
        said = predictions(kernel, record.to(dtype), support, targets, settings.ridge)
        (gradient,) = torch.autograd.grad((said - wanted).square().sum(), support)
        flat = gradient.flatten().double().numpy()
        if settings.clip_in == "pixels":
            flat = flat[free_pixels(settings, run).ravel()]
        total = total + flat / max(float(np.linalg.norm(flat)), settings.clip)
    return np.asarray(total)


def released_sum(name: str, settings: GradientSettings, images: NDArray, labels: NDArray) -> NDArray[np.float64]:
    asked = replace(request(settings, Kind.STATISTICS), method=name, shape=images.shape[1:])
    plan = method(name).plan(asked, settings)
    answer = MECHANISM.run(Records(images, labels), asked, settings, plan, SeededEntropy(1), silent)
    return in_units(answer.arrays["gradient"])[0]


@pytest.mark.parametrize("clip", [1e-3, 1e3], ids=["all clipped", "none clipped"])
@pytest.mark.parametrize("kernel", ["fc-ntk", "scattering"])
def test_a_stage_sums_clipped_gradients_of_the_losses(kernel: str, clip: float) -> None:
    images, labels = blobs(7, seed=1, shape=(1, 8, 9))
    settings = DPKIP.settings(
        {"support_per_class": 2, "steps": 2, "rate": 1.0, "clip": clip, "kernel": kernel, "frozen": 0.1}
    )
    assert not settings.factored
    expected = expected_sum(settings, images, labels)
    found = released_sum("dp-kip", settings, images, labels)
    np.testing.assert_allclose(found, expected, atol=2e-3 * np.abs(expected).max() + 1e-5)


@pytest.mark.parametrize("clip", [1e-3, 1.0], ids=["all clipped", "none clipped"])
@pytest.mark.parametrize("name", ["dp-kip", "dp-kip-features"])
def test_so_does_a_factored_one_with_factors_rounded_to_a_grid(name: str, clip: float) -> None:
    images, labels = blobs(7, seed=1, shape=(1, 8, 9))
    settings = method(name).settings({"support_per_class": 2, "steps": 2, "rate": 1.0, "clip": clip})
    assert settings.factored
    expected = expected_sum(settings, images, labels)
    found = released_sum(name, settings, images, labels)
    assert np.linalg.norm(found - expected) < 7**0.5 * 0.01, "a record's gradient is rounded by at most a hundredth"
    assert np.linalg.norm(expected) > 0.4


def test_clipping_in_features_has_a_name_of_its_own() -> None:
    for name, clip_in in (("dp-kip", "features"), ("dp-kip-features", "pixels")):
        with pytest.raises(ConfigError, match="as published"):
            method(name).settings({"kernel": "scattering", "clip_in": clip_in})
    with pytest.raises(ConfigError, match="fc-ntk has no features"):
        DPKIP.settings({"backbone": "scatter28"})
    assert DPKIP.resolve(DPKIP.settings({"kernel": "scattering"}), RUN28, 1.0, 1e-5).backbone == "scatter28"
    assert DPKIP.resolve(DPKIP.settings({}), RUN28, 1.0, 1e-5) == DPKIP.settings({})


def test_a_silo_makes_a_set_that_teaches() -> None:
    settings = GradientSettings(support_per_class=2, steps=60, rate=0.5, learning_rate=0.03)
    asked, records = request(settings, Kind.DISTILLED_SET), Records(*blobs(120, seed=1))
    answered = local_synthesis.run_stages(records, asked, DPKIP, settings, SeededEntropy(1), silent)
    assert len(answered) == 60
    made = local_synthesis.synthesise_locally(answered, asked, DPKIP, settings, silent).arrays
    images, labels = blobs(300, seed=2)
    accuracies = []
    for pixels in (start(settings, RunDescription(CLASSES, SHAPE, 3)), made["images"].astype(np.float32) / 255.0):
        targets = centred(torch.from_numpy(made["labels"].copy()), 3).double()
        inputs, support = (torch.from_numpy(each).double() for each in (images, pixels))
        answers = predictions(FullyConnectedNTK(), inputs, support, targets, settings.ridge).argmax(1)
        accuracies.append(float((answers == torch.from_numpy(labels)).double().mean()))
    assert accuracies[0] < 0.6 and accuracies[1] > 0.85, accuracies
