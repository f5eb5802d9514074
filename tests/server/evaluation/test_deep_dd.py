"""`resnet18-dd` and `densenet121-dd`: the protocol of `convnet-dd` with other networks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from dpdd.common.data.labelled_images import LabelledImages
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.server.evaluation import convnet_dd
from dpdd.server.evaluation.base import Classifier
from dpdd.server.evaluation.convnet import TrainedNetwork
from dpdd.server.evaluation.deep_dd import dd_densenets, dd_resnets
from dpdd.server.evaluation.learner_settings import (
    ConvNetDDSettings,
    DenseNetDDSettings,
    LearnerSettings,
    ProtocolSettings,
    ResNetDDSettings,
)
from dpdd.server.evaluation.scoring import evaluate, scores
from dpdd.server.evaluation.settings import EvaluationSection
from tests.server.evaluation.test_convnet_dd import CLASSES, pictures

SETTINGS = LearnerSettings(
    resnet18_dd=ResNetDDSettings(runs=1, width=4, steps=15, learning_rate=0.01),
    densenet121_dd=DenseNetDDSettings(runs=1, growth=2, steps=25, learning_rate=0.01),
)
TRAINERS = pytest.mark.parametrize("train", [dd_resnets, dd_densenets])
Trainer = Callable[[LabelledSet, LearnerSettings, int], list[Classifier]]


@pytest.mark.parametrize("train", [dd_resnets, pytest.param(dd_densenets, marks=pytest.mark.slow)])
def test_a_network_learns_from_right_labels_only(train: Trainer) -> None:
    images, labels = pictures(np.arange(12) % 3, 1)
    test = LabelledImages(*pictures(np.arange(30) % 3, 2), CLASSES)
    for turn, right in ((0, True), (1, False)):
        networks = train(LabelledSet(images, (labels + turn) % 3, CLASSES), SETTINGS, 0)
        mean = scores(networks, test)["accuracy"].mean
        assert mean > 0.9 if right else mean < 0.1


def test_soft_labels_change_nothing_and_networks_follow_from_the_seed() -> None:
    images, labels = pictures(np.arange(12) % 3, 1)
    wrong = np.eye(3, dtype=np.float32)[(labels + 1) % 3]
    own = SETTINGS.resnet18_dd.model_copy(update={"steps": 2, "runs": 2})
    settings, batch = SETTINGS.model_copy(update={"resnet18_dd": own}), torch.from_numpy(images).float() / 255
    one, two = dd_resnets(LabelledSet(images, labels, CLASSES), settings, 3)
    again, _ = dd_resnets(LabelledSet(images, labels, CLASSES, wrong), settings, 3)
    assert one(batch).equal(again(batch)) and not one(batch).equal(two(batch))
    section = EvaluationSection(learners=("resnet18-dd",), resnet18_dd=own, runs=5)
    soft = LabelledSet(images, labels, CLASSES, wrong)
    shown = evaluate(soft, LabelledImages(images, labels, CLASSES), section, None, seed=0)["accuracy"]["resnet18-dd"]
    assert shown["labels"] == "hard" and len(shown["runs"]) == 2


@TRAINERS
def test_images_are_standardised_and_changed_as_for_the_convnet(
    train: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def watch(images: torch.Tensor, kinds: tuple[str, ...], generator: torch.Generator) -> torch.Tensor:
        asked.append(kinds)
        assert abs(float(images.mean())) < 0.5
        return images

    monkeypatch.setattr(convnet_dd, "augment", watch)
    one = {"runs": 1, "steps": 1, "augmentation": ("crop", "flip")}
    settings = SETTINGS.model_copy(
        update={
            "flips": False,
            "resnet18_dd": SETTINGS.resnet18_dd.model_copy(update=one),
            "densenet121_dd": SETTINGS.densenet121_dd.model_copy(update=one),
        }
    )
    images, labels = pictures(np.arange(6) % 3, 1)
    [network] = train(LabelledSet(images, labels, CLASSES), settings, 0)
    assert asked == [("crop",)] and isinstance(network, TrainedNetwork) and not network.network.training
    assert float(network.mean) == pytest.approx(images.mean() / 255, abs=1e-5)


def test_the_protocol_is_the_same_and_sizes_are_those_published() -> None:
    shared = set(ProtocolSettings.model_fields)
    ours = [each.model_dump(include=shared) for each in (ConvNetDDSettings(), ResNetDDSettings(), DenseNetDDSettings())]
    assert ours[0] == ours[1] == ours[2]
    assert (ResNetDDSettings().width, DenseNetDDSettings().growth) == (64, 32)
    with pytest.raises(ValidationError, match="instance"):
        ResNetDDSettings.model_validate({"normalisation": "layer"})
