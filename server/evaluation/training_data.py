"""What learners train on: images of the synthetic set, and the best labels that it has and the settings allow.

Best are teacher-labelled augmentations: augmentations, blends and collages of the images, labelled by the set's own
teacher. Then soft labels, then hard ones.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from dpdd.common.errors import ConfigError, DataError
from dpdd.common.models.feature_network import FeatureNetwork
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.teacher import teacher_augmentations
from dpdd.server.evaluation.learner_settings import Labels, LearnerSettings

AUGMENTATION_STRENGTH = 0.08
"""Shifts and zooms in teacher-labelled augmentations, as a share of the image."""


def labels_of(dataset: LabelledSet, settings: LearnerSettings) -> Labels:
    """What networks learn from: the best labels that `dataset` has, of those that `settings` allow."""
    if settings.labels == "teacher" and settings.augmentations and dataset.teacher is not None:
        return "teacher"
    return "soft" if settings.labels != "hard" and dataset.soft is not None else "hard"


def training_data(dataset: LabelledSet, settings: LearnerSettings) -> tuple[Tensor, Tensor]:
    """Images in [0, 1], and what to answer to each; augmentations are drawn from torch's generator."""
    if len(dataset) == 0:
        raise ConfigError("there are no synthetic images; at least one is needed")
    images, kind = torch.from_numpy(dataset.images.copy()).float() / 255.0, labels_of(dataset, settings)
    if kind == "teacher":
        assert dataset.teacher is not None
        generator = torch.Generator().manual_seed(int(torch.randint(2**31, ())))
        strength, flips = AUGMENTATION_STRENGTH, settings.flips
        images = teacher_augmentations(images, settings.augmentations, strength, flips, generator)
        return images, dataset.teacher.probabilities(images)
    return images, targets(dataset if kind == "soft" else replace(dataset, soft=None))


def targets(dataset: LabelledSet) -> Tensor:
    """What a network should answer to each image: probabilities (N, classes) where there are some, else labels (N).

    >>> images = np.zeros((2, 1, 8, 8), np.uint8)
    >>> targets(LabelledSet(images, np.array([0, 1]), ("cat", "dog")))
    tensor([0, 1])
    """
    if dataset.soft is None:
        return torch.from_numpy(dataset.labels.copy())
    soft = torch.from_numpy(np.array(dataset.soft, dtype=np.float32))
    if soft.shape != (len(dataset), len(dataset.classes)):
        raise DataError(
            f"the soft labels are of shape {tuple(soft.shape)}, but {len(dataset)} images of {len(dataset.classes)} "
            f"classes need {(len(dataset), len(dataset.classes))}"
        )
    if not bool((soft >= 0).all()) or not bool(((soft.sum(dim=1) - 1.0).abs() < 1e-3).all()):
        raise DataError("the soft labels are not probabilities: each row needs numbers from 0 that add up to 1")
    return soft


def check_channels(what: str, channels: int, backbone: FeatureNetwork) -> None:
    """ConfigError unless `backbone` takes images with so many channels."""
    if channels != backbone.mean.shape[1]:
        raise ConfigError(
            f"the {what} images have {channels} channels, but the backbone was made for {backbone.mean.shape[1]}; "
            "choose another backbone"
        )
