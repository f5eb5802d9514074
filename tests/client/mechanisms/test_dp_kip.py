"""DP-KIP in a silo: gradients are those of the records' losses, and many steps make a set that teaches."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from dpdd.client import local_synthesis
from dpdd.client.mechanisms.dp_kip import MECHANISM
from dpdd.client.records.records import Records
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.dp_kip.descent import labels_of, start
from dpdd.common.methods.dp_kip.kernels import FullyConnectedNTK, centred, predictions
from dpdd.common.methods.dp_kip.settings import GradientSettings
from dpdd.common.methods.registry import method
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.privacy.privatise import in_units
from dpdd.common.progress import silent
from dpdd.common.synthesis.distilled_set import DistilledSetSettings
from dpdd.common.wire.request import Kind, ReleaseRequest

CLASSES, SHAPE = ("a", "b", "c"), (1, 6, 6)
DPKIP = method("dp-kip")


def blobs(count: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    generator = np.random.Generator(np.random.PCG64(seed))
    labels = np.arange(count) % 3
    images = 0.6 * generator.random((count, *SHAPE))
    for label in range(3):
        images[labels == label, :, :, 2 * label : 2 * label + 2] += 0.3
    return images.astype(np.float32), labels.astype(np.int64)


def request(settings: GradientSettings, kind: Kind, epsilon: float = math.inf) -> ReleaseRequest:
    values = settings.on_wire()
    if kind is Kind.DISTILLED_SET:
        values = DistilledSetSettings(method=values, synthesis={"average_last": 5}, images_per_class=2).on_wire()
    return ReleaseRequest("run", "dp-kip", values, epsilon, 1e-5, CLASSES, SHAPE, 3, kind=kind)


def test_a_stage_sums_clipped_gradients_of_the_losses() -> None:
    images, labels = blobs(7, seed=1)
    run = RunDescription(CLASSES, SHAPE, 3)
    for clip in (1e-3, 1e3):  # all are clipped, and none
        settings = GradientSettings(support_per_class=2, steps=2, rate=1.0, clip=clip)
        asked = request(settings, Kind.STATISTICS)
        plan = DPKIP.plan(asked, settings)
        answer = MECHANISM.run(Records(images, labels), asked, settings, plan, SeededEntropy(1), silent)
        support = torch.from_numpy(start(settings, run).copy()).double().requires_grad_(True)
        targets = centred(torch.from_numpy(labels_of(settings, run)), 3).double()
        expected = np.zeros(6 * 36)
        for image, label in zip(images, labels, strict=True):
            wanted = centred(torch.tensor([label]), 3).double()
            record = torch.from_numpy(image[None]).double()
            said = predictions(FullyConnectedNTK(), record, support, targets, settings.ridge)
            (gradient,) = torch.autograd.grad((said - wanted).square().sum(), support)
            flat = gradient.flatten().numpy()
            expected += flat / max(float(np.linalg.norm(flat)), clip)
        found = in_units(answer.arrays["gradient"])[0]
        np.testing.assert_allclose(found, expected, atol=2e-3 * np.abs(expected).max() + 1e-5)


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
