"""The evaluation measures what it says: right labels learn, wrong ones do not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpdd.common.data.labelled_images import LabelledImages
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.server.evaluation.base import Score
from dpdd.server.evaluation.convnet import augment, convnets, mix
from dpdd.server.evaluation.learner_settings import LearnerSettings
from dpdd.server.evaluation.scoring import scores

CLASSES = ("top", "bottom")


def pictures(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.Generator(np.random.PCG64(seed))
    labels = np.arange(count) % 2
    images = generator.integers(0, 60, (count, 1, 16, 16), dtype=np.uint8)
    images[labels == 0, :, :8] += 150
    images[labels == 1, :, 8:] += 150
    return images, labels


SETTINGS = LearnerSettings(runs=2, width=8, steps=40, batch=32, learning_rate=0.01)


def accuracy(images: np.ndarray, labels: np.ndarray, settings: LearnerSettings, seed: int) -> Score:
    """Of ConvNets that learnt from these images, on a hundred others."""
    networks = convnets(LabelledSet(images, labels, CLASSES), settings, seed)
    return scores(networks, LabelledImages(*pictures(100, 2), CLASSES))["accuracy"]


def test_a_network_learns_from_right_labels_only() -> None:
    images, labels = pictures(64, 1)
    right = accuracy(images, labels, SETTINGS, seed=0)
    assert len(right.runs) == 2 and right.mean > 0.95
    assert accuracy(images, 1 - labels, SETTINGS, seed=0).mean < 0.05


def test_scores_repeat_for_a_seed() -> None:
    quick = SETTINGS.model_copy(update={"steps": 3})
    one, two = (accuracy(*pictures(16, 1), quick, seed=5).runs for _ in range(2))
    assert one == two


def test_mixing_keeps_images_and_labels_together() -> None:
    torch.manual_seed(1)
    labels = torch.tensor([0, 1, 2])
    images = torch.eye(3).view(3, 3, 1, 1)
    blended, wanted = mix(images, labels, 3, strength=1.0)
    torch.testing.assert_close(blended.view(3, 3), wanted)
    torch.testing.assert_close(wanted.sum(1), torch.ones(3))
    assert not wanted.equal(torch.eye(3))
    assert mix(images, torch.full((3, 3), 1 / 3), 3, 1.0)[1].allclose(torch.tensor(1 / 3))


def test_an_augmentation_of_ones_own() -> None:
    seen = []

    def watch(images: torch.Tensor) -> torch.Tensor:
        seen.append(len(images))
        return images

    settings = SETTINGS.model_copy(update={"runs": 1, "steps": 3})
    convnets(LabelledSet(*pictures(60, 1), CLASSES), settings, seed=0, augmentation=watch)
    assert seen == [32, 32, 32]


@pytest.mark.parametrize("flips", [True, False])
def test_augmentation_moves_whole_images_a_little_and_mirrors_them_if_asked(flips: bool) -> None:
    torch.manual_seed(0)
    size, place = 41, torch.arange(41.0) - 20.0
    image = torch.zeros(1, 2, size, size)
    image[0, 0, 18:23, 24:29] = 1.0  # a square, six pixels right of the middle
    image[0, 1] = 2.0 * image[0, 0]
    moved = augment(image.expand(500, -1, -1, -1), flips)
    torch.testing.assert_close(moved[:, 1], 2.0 * moved[:, 0])
    mass = moved[:, 0].sum(dim=(1, 2))
    down = (moved[:, 0].sum(dim=2) @ place) / mass
    right = (moved[:, 0].sum(dim=1) @ place) / mass
    # At most: a tenth of the image, a sixth of an arm of six pixels scaled by 1.2, and a quarter of it turned upwards.
    assert 4.0 < float(down.abs().max()) < 0.1 * size + 6.0 * 1.2 * 0.26 + 1.0
    assert float((right.abs() - 6.0).abs().max()) < 0.1 * size + 1.5 + 1.0
    mirrored = float((right < 0.0).float().mean())
    assert 0.4 < mirrored < 0.6 if flips else mirrored == 0.0
    assert 25.0 / 1.2**2 - 3.0 < float(mass.min()) < 20.0 and 30.0 < float(mass.max()) < 25.0 * 1.2**2 + 3.0
