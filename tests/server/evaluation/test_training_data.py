"""What learners train on: the best labels there are, which must be labels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dpdd.common.errors import ConfigError, DataError
from dpdd.common.models.backbone import Backbone
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.server.evaluation.learner_settings import LearnerSettings
from dpdd.server.evaluation.training_data import labels_of, targets, training_data
from tests.server.evaluation.worlds import CLASSES, pictures, synthetic, tiny_teacher

ALL = LearnerSettings(augmentations=400)
SOFT = LearnerSettings(labels="soft")


def test_a_set_is_learnt_from_with_what_it_has(public: Backbone, tmp_path: Path) -> None:
    guide = tiny_teacher(public, tmp_path, turn=0)
    assert labels_of(synthetic(), ALL) == "hard" == labels_of(synthetic(), SOFT)
    assert labels_of(synthetic(soft=0.9), ALL) == "soft"
    assert labels_of(replace(synthetic(), teacher=guide), ALL) == "teacher"
    assert labels_of(replace(synthetic(), teacher=guide), SOFT) == "hard"
    assert labels_of(replace(synthetic(), teacher=guide), LearnerSettings(augmentations=0)) == "hard"


def test_the_teacher_labels_as_many_augmentations_as_asked(public: Backbone, tmp_path: Path) -> None:
    dataset = replace(synthetic(soft=0.9), teacher=tiny_teacher(public, tmp_path, turn=0))
    torch.manual_seed(1)
    images, labels = training_data(dataset, ALL)
    assert len(images) == 400 and dataset.teacher is not None
    torch.testing.assert_close(labels, dataset.teacher.probabilities(images))
    torch.manual_seed(2)
    assert not training_data(dataset, ALL)[0].equal(images), "they are drawn from torch's generator"
    torch.manual_seed(1)
    assert training_data(dataset, ALL)[0].equal(images)


def test_without_a_teacher_images_are_as_they_are() -> None:
    dataset = synthetic(soft=0.9)
    assert dataset.soft is not None
    for settings, expected in ((SOFT, dataset.soft), (LearnerSettings(labels="hard"), dataset.labels)):
        images, labels = training_data(dataset, settings)
        assert images.equal(torch.from_numpy(dataset.images).float() / 255) and (labels.numpy() == expected).all()


@pytest.mark.parametrize(
    "soft, complaint",
    [
        (np.ones((60, 2), np.float32) / 2, r"\(60, 3\)"),
        (np.ones((60, 3), np.float32), "add up to 1"),
        (np.tile(np.float32([2, -1, 0]), (60, 1)), "from 0"),
        (np.full((60, 3), np.nan, np.float32), "not probabilities"),
    ],
)
def test_soft_labels_must_be_probabilities(soft: np.ndarray, complaint: str) -> None:
    images, labels = pictures(60, 1)
    with pytest.raises(DataError, match=complaint):
        targets(LabelledSet(images, labels, CLASSES, soft))


def test_an_empty_set_teaches_nothing() -> None:
    images, labels = pictures(6, 1)
    with pytest.raises(ConfigError, match="no synthetic images"):
        training_data(LabelledSet(images[:0], labels[:0], CLASSES), ALL)
