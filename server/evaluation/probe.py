"""The learner `probe`: logistic regression on frozen features of a public backbone.

Soft and hard labels come with shifts (and mirror images where asked for); teacher-labelled augmentations are taken as
they are.

>>> import numpy as np
>>> from dpdd.common.models.convnet import ConvNet, ConvNetArchitecture
>>> images = np.zeros((20, 1, 8, 8), np.uint8)
>>> images[10:, :, :4] = 255
>>> dataset = LabelledSet(images, np.repeat([0, 1], 10), ("dark", "light"))
>>> network = ConvNet(ConvNetArchitecture(channels=1, height=8, width=8, classes=3, widths=(4, 6))).eval()
>>> [classifier] = probes(dataset, network, LearnerSettings(probe=ProbeSettings(copies=2)), seed=0)
>>> classifier(dataset.as_torch().tensors[0][[0, 19]]).argmax(1)
tensor([0, 1])
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from dpdd.common.models.feature_network import FeatureNetwork
from dpdd.common.models.training import augment
from dpdd.common.progress import Progress, silent
from dpdd.common.randomness import subseed
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.server.evaluation.base import Classifier
from dpdd.server.evaluation.frozen_features import OnBackbone
from dpdd.server.evaluation.learner_settings import LearnerSettings, ProbeSettings
from dpdd.server.evaluation.training_data import check_channels, labels_of, training_data

_AT_ONCE = 500


def probes(
    dataset: LabelledSet,
    backbone: FeatureNetwork,
    settings: LearnerSettings,
    seed: int,
    progress: Progress = silent,
    sha256: str = "",
) -> list[Classifier]:
    """`settings.runs` linear classifiers on frozen features of `dataset`, or of augmentations of it.

    `sha256` is that of the backbone: by it, features of test images are remembered.
    """
    check_channels("synthetic", dataset.images.shape[1], backbone)
    fitted: list[Classifier] = []
    probe = settings.probe
    altered = labels_of(dataset, settings) == "teacher"
    copies = 1 if altered else probe.copies
    for run in range(settings.runs):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(subseed(seed, f"linear probe {run}"))
            images, labels = training_data(dataset, settings)
        generator = torch.Generator().manual_seed(subseed(seed, f"linear probe {run}"))
        features = []
        for done in range(copies):
            seen = images if altered else augment(images, probe.shift, settings.flips, generator)
            features.append(_features(backbone, seen))
            progress(f"features for linear probe {run + 1} of {settings.runs}", done + 1, copies)
        repeated = labels.repeat(copies, *[1] * (labels.ndim - 1))
        head = _linear(*_regress(torch.cat(features), repeated, len(dataset.classes), probe))
        fitted.append(OnBackbone(backbone, sha256, head))
    return fitted


def _regress(features: Tensor, labels: Tensor, classes: int, settings: ProbeSettings) -> tuple[Tensor, Tensor]:
    """Weight and bias, for features as they are, of the regression on standardised ones."""
    mean, std = features.mean(0), features.std(0).clamp_min(1e-6)
    x = (features - mean) / std
    weight = x.new_zeros(classes, x.shape[1]).requires_grad_()
    bias = x.new_zeros(classes).requires_grad_()
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=settings.iterations, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = functional.cross_entropy(functional.linear(x, weight, bias), labels)
        value = value + 0.5 * settings.decay * weight.square().sum()
        value.backward()
        return value

    optimiser.step(loss)  # type: ignore[arg-type]
    with torch.no_grad():
        scaled = weight / std
        return scaled, bias - scaled @ mean


def _linear(weight: Tensor, bias: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda _images, features: functional.linear(features, weight, bias)


@torch.no_grad()
def _features(network: FeatureNetwork, images: Tensor) -> Tensor:
    return torch.cat([network.features(part) for part in images.split(_AT_ONCE)])
