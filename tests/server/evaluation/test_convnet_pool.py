"""The learner that trains on the public pool: it looks at nothing else, and says so."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpdd.common.data.labelled_images import LabelledImages
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.public_pool import LabelledPool, PoolFacts
from dpdd.server.evaluation.base import CannotLearn
from dpdd.server.evaluation.convnet_pool import moved, pool_convnets
from dpdd.server.evaluation.learner_settings import ConvNetPoolSettings, LearnerSettings
from dpdd.server.evaluation.scoring import evaluate
from dpdd.server.evaluation.settings import EvaluationSection
from dpdd.server.report.scores import score_table

CLASSES = ("dark", "light")
TINY = ConvNetPoolSettings(width=4, steps=30, batch=20, learning_rate=0.03)


def stripes(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images whose upper half is light, or dark."""
    labels = np.arange(count) % 2
    images = np.random.default_rng(seed).integers(0, 60, (count, 1, 8, 8), dtype=np.uint8)
    images[labels == 1, :, :4] += 180
    return images, labels


def with_pool() -> LabelledSet:
    """A set whose own labels are wrong; the pool's are right."""
    images, labels = stripes(100, 0)
    pool = LabelledPool.of(images, np.eye(2)[labels], PoolFacts("stripes", "CC0-1.0", CLASSES, (1, 8, 8)))
    return LabelledSet(images[:10], 1 - labels[:10], CLASSES, priors=(0.999, 0.001), pool=pool)


def test_it_learns_from_the_pool_and_not_from_the_set() -> None:
    images, labels = stripes(40, 1)
    settings = EvaluationSection(
        learners=("convnet-dd", "convnet-pool"), convnet_dd={"runs": 1, "width": 4, "steps": 2}, convnet_pool=TINY
    )
    figures = evaluate(with_pool(), LabelledImages(images, labels, CLASSES), settings, None, 0)
    assert figures["accuracy"]["convnet-pool"]["mean"] > 0.9, "declared priors are in the pool's labels already"
    assert [figures["accuracy"][name]["labels"] for name in ("convnet-dd", "convnet-pool")] == ["hard", "pool"]
    [row] = [line for line in score_table(figures).splitlines() if "public pool" in line]
    assert row.startswith("ConvNet from scratch")


def test_without_a_pool_it_cannot_learn() -> None:
    images, labels = stripes(10, 0)
    with pytest.raises(CannotLearn, match="no public pool"):
        pool_convnets(LabelledSet(images, labels, CLASSES), LearnerSettings(), 0)


def test_a_seed_decides_and_torchs_own_numbers_are_left_alone() -> None:
    settings = LearnerSettings(convnet_pool=TINY.model_copy(update={"runs": 2, "steps": 2}))
    before = torch.get_rng_state()
    first, second = pool_convnets(with_pool(), settings, 3)
    assert torch.equal(before, torch.get_rng_state())
    again, _ = pool_convnets(with_pool(), settings, 3)
    images = torch.rand(3, 1, 8, 8)
    assert torch.equal(first(images), again(images)) and not torch.equal(first(images), second(images))


def test_half_of_the_images_are_mirrored_where_that_is_allowed() -> None:
    images = torch.zeros(400, 1, 1, 16)
    images[..., 3] = 1.0
    places = moved(images, True, torch.Generator().manual_seed(0)).argmax(dim=3).flatten()
    assert 150 < int((places > 8).sum()) < 250
    unmirrored = moved(images, False, torch.Generator().manual_seed(0)).argmax(dim=3).flatten()
    assert int((unmirrored > 8).sum()) == 0 and len(unmirrored.unique()) > 2
