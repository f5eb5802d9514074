"""Distilling a labelled pool: what images start as, what they are compared with, and that they get nearer to it."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.matching.pieces import expand
from dpdd.common.synthesis.image_embedding import ImageEmbedding
from dpdd.common.synthesis.teacher import Teacher
from dpdd.server.pool.distillation import PoolTask, class_means, distilled, features, selected, tiled
from dpdd.server.pool.making import ScoredPool
from dpdd.server.pool.section import PoolSection

CLASSES = ("dark above", "light above")
RUN = RunDescription(CLASSES, (1, 12, 12), 5, images_per_class=2)


def pool(count: int = 120) -> ScoredPool:
    """Images whose upper half is light in one of two classes, and a classifier that is sure of them."""
    labels = np.arange(count) % 2
    generator = np.random.default_rng(0)
    images = generator.integers(0, 120, (count, 1, 12, 12)).astype(np.uint8)
    images[labels == 1, :, :6] += 120
    embedding = ImageEmbedding(4, 2, 1)
    teacher = Teacher(np.zeros((2, embedding.dimensions), np.float32), "scatter28", "", embedding)
    vectors = generator.standard_normal((count, embedding.dimensions)).astype(np.float32)
    return ScoredPool(images, vectors, np.eye(2, dtype=np.float32)[labels] * 0.9 + 0.05, teacher)


def lightness(images: torch.Tensor) -> torch.Tensor:
    """How much lighter the upper half of each image is."""
    return images[:, :, :6].mean(dim=(1, 2, 3)) - images[:, :, 6:].mean(dim=(1, 2, 3))


def section(parts: int = 1, **distillation: object) -> PoolSection:
    settings = {"width": 4, "training_steps": 4, "batch": 8, "steps": 3, **distillation}
    return PoolSection(dataset="mnist", licence="none", candidates=3, parts=parts, distillation=settings)


def test_tiles_are_what_expand_cuts_apart() -> None:
    images = np.repeat(np.arange(8, dtype=np.uint8) * 30, 144).reshape(8, 1, 12, 12)
    pieces = expand(tiled(images, 2), 2) * 255.0
    assert pieces.shape == (8, 1, 12, 12)
    assert torch.allclose(pieces, torch.from_numpy(images).float(), atol=1e-3)
    assert torch.equal(tiled(images, 1) * 255.0, torch.from_numpy(images).float())


def test_features_are_what_the_classifier_of_a_network_sees() -> None:
    task = PoolTask.of(pool(), section(), RUN)
    [network, *_] = task._networks(0, torch.Generator().manual_seed(0), torch.device("cpu"))
    images = torch.rand(3, 1, 12, 12)
    assert torch.equal(network[-1](features(network, images)), network(images))


@pytest.mark.parametrize("networks", [{"networks": 0}, {"networks": 1, "label_weight": 0.1}])
def test_distilled_images_come_nearer_to_the_pool_and_are_made_again_alike(networks: dict[str, float]) -> None:
    task = PoolTask.of(pool(), section(steps=40, learning_rate=0.05, **networks), RUN)
    dull = task.start * 0.0 + 0.5
    task = PoolTask(dull, task.material, task.soft, task.members, task.settings, task.run)
    *_, last = task.make(0, torch.device("cpu"))
    dark, light = lightness(last.images().detach()).view(2, 2).mean(dim=1)
    assert float(light - dark) > 0.1, "grey images come to have a light upper half, in one class"
    again = pickle.loads(pickle.dumps(task))
    *_, other = again.make(0, torch.device("cpu"))
    assert torch.equal(last.images(), other.images()) and task.fingerprint("cpu") == again.fingerprint("cpu")


def test_with_parts_there_are_as_many_more_images_sorted_by_class() -> None:
    for make in (distilled, selected):
        check_parts(*make(pool(), section(parts=2), RUN))


def test_selected_images_without_parts_are_the_pools_own() -> None:
    images, labels = selected(pool(), section(), RUN)
    assert all(any(np.array_equal(image, known) for known in pool().images) for image in images)
    assert labels.tolist() == [0, 0, 1, 1]


def check_parts(images: np.ndarray, labels: np.ndarray) -> None:
    assert images.shape == (16, 1, 12, 12) and labels.tolist() == [0] * 8 + [1] * 8
    light = lightness(torch.from_numpy(images).float())
    assert light[:8].max() < light[8:].min(), "they start as images of their class"


def test_networks_that_never_learnt_have_no_say_in_labels() -> None:
    with pytest.raises(ValidationError, match="that learnt from the pool"):
        section(label_weight=0.1)


def test_a_class_that_is_missing_in_a_batch_has_no_mean() -> None:
    means = class_means(torch.ones(2, 3), torch.tensor([1, 1]), 3)
    assert means[1].tolist() == [1.0] * 3 and means[0].tolist() == [0.0] * 3
