"""The evaluation measures what it says: right labels learn, wrong ones do not."""

from __future__ import annotations

import numpy as np
import torch

from dpdd.common.datasets import LabelledImages
from dpdd.common.scenario import EvaluationSection
from dpdd.common.synthesis.dataset import SyntheticSet
from dpdd.server.evaluate import Accuracy, augment, convnet_accuracy

CLASSES = ("top", "bottom")


def pictures(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.Generator(np.random.PCG64(seed))
    labels = np.arange(count) % 2
    images = generator.integers(0, 60, (count, 1, 16, 16), dtype=np.uint8)
    images[labels == 0, :, :8] += 150
    images[labels == 1, :, 8:] += 150
    return images, labels


SETTINGS = EvaluationSection(runs=2, width=8, steps=40, batch=32, learning_rate=0.01)


def test_a_network_learns_from_right_labels_only() -> None:
    images, labels = pictures(64, 1)
    test = LabelledImages(*pictures(100, 2), CLASSES)
    right = convnet_accuracy(SyntheticSet(images, labels, CLASSES), test, SETTINGS, seed=0)
    assert len(right.runs) == 2 and right.mean > 0.95
    wrong = convnet_accuracy(SyntheticSet(images, 1 - labels, CLASSES), test, SETTINGS, seed=0)
    assert wrong.mean < 0.05


def test_scores_repeat_for_a_seed() -> None:
    images, labels = pictures(16, 1)
    test = LabelledImages(*pictures(50, 2), CLASSES)
    quick = SETTINGS.model_copy(update={"steps": 3})
    scores = [convnet_accuracy(SyntheticSet(images, labels, CLASSES), test, quick, seed=5).runs for _ in range(2)]
    assert scores[0] == scores[1]


def test_mean_and_deviation() -> None:
    assert Accuracy((0.5, 0.7)).mean == 0.6
    assert abs(Accuracy((0.5, 0.7)).std - 0.02**0.5) < 1e-12
    assert Accuracy((0.5,)).std == 0.0


def test_augmentation_shifts_and_flips_whole_images() -> None:
    torch.manual_seed(0)
    image = torch.zeros(1, 2, 9, 9)
    image[0, 0, 4, 3] = 1.0
    image[0, 1, 4, 3] = 2.0
    seen = set()
    for shifted in augment(image.expand(400, -1, -1, -1)):
        at = tuple((shifted[0] == 1.0).nonzero()[0].tolist())
        assert (shifted[0] == 1.0).sum() == 1 and shifted[1][at] == 2.0
        seen.add(at)
    rows, columns = {row for row, _ in seen}, {column for _, column in seen}
    assert rows == {2, 3, 4, 5, 6} and columns == {1, 2, 3, 4, 5, 6, 7}
