"""The learners `resnet18-dd` and `densenet121-dd`: deeper networks judge sets by the protocol of `convnet-dd`.

Papers distil with a ConvNet, and show with these that what was distilled is worth something to others. Training,
augmentation and schedule are those of `convnet_dd.dd_networks`; the networks are in `common.models.evaluation_resnets`.

>>> import numpy as np, torch
>>> from dpdd.server.evaluation.learner_settings import ResNetDDSettings
>>> images = np.zeros((20, 1, 8, 8), np.uint8)
>>> images[10:, :, :4] = 255
>>> dataset = LabelledSet(images, np.repeat([0, 1], 10), ("dark", "light"))
>>> settings = LearnerSettings(resnet18_dd=ResNetDDSettings(runs=1, width=4, steps=1))
>>> [classifier] = dd_resnets(dataset, settings, seed=0)
>>> classifier(torch.rand(5, 1, 8, 8)).shape
torch.Size([5, 2])
"""

from __future__ import annotations

from torch import nn

from dpdd.common.models.evaluation_resnets import evaluation_densenet, evaluation_resnet
from dpdd.common.progress import Progress, silent
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.server.evaluation.base import Classifier
from dpdd.server.evaluation.convnet_dd import Shape, dd_networks
from dpdd.server.evaluation.learner_settings import LearnerSettings


def dd_resnets(
    dataset: LabelledSet, settings: LearnerSettings, seed: int, progress: Progress = silent
) -> list[Classifier]:
    """`settings.resnet18_dd.runs` of ResNet-18, trained on the images of `dataset` and their hard labels."""
    own = settings.resnet18_dd

    def build(shape: Shape, classes: int) -> nn.Module:
        return evaluation_resnet(shape, classes, own.width, own.normalisation)

    return [*dd_networks(dataset, settings, own, build, "resnet18-dd", seed, progress, called="ResNet-18")]


def dd_densenets(
    dataset: LabelledSet, settings: LearnerSettings, seed: int, progress: Progress = silent
) -> list[Classifier]:
    """`settings.densenet121_dd.runs` of DenseNet-121, trained on the images of `dataset` and their hard labels."""
    own = settings.densenet121_dd

    def build(shape: Shape, classes: int) -> nn.Module:
        return evaluation_densenet(shape, classes, own.growth, own.normalisation)

    return [*dd_networks(dataset, settings, own, build, "densenet121-dd", seed, progress, called="DenseNet-121")]
