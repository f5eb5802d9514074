"""The learners `krr`: kernel ridge regression on a synthetic set, with hard or soft labels, by one of five kernels.

`krr` takes the image embedding of a public backbone, which is what `kip-moments` makes sets for; `krr-features` the
inner product of the backbone's features as they are, as DP-KIP's ScatterNet kernel does; `krr-ntk` the neural tangent
kernel of an infinitely wide fully connected network, on pixels in [0, 1]; `krr-perceptual` all layers of a ResNet-18
with random weights, and `krr-entk` the empirical tangent kernel of a LeNet with random weights. A set that was made
with one kernel and is judged by another tells what it is worth beyond its own.

Nothing in it is random (everybody has the same random networks), so there is one classifier, however many `runs` other
learners have.

>>> import numpy as np
>>> images = np.zeros((20, 1, 8, 8), np.uint8)
>>> images[10:, :, :4] = 255
>>> dataset = LabelledSet(images, np.repeat([0, 1], 10), ("dark", "light"))
>>> classifier = kernel_regression(dataset, "ntk", LearnerSettings(labels="hard"), None)
>>> classifier(dataset.as_torch().tensors[0][[0, 19]]).argmax(1)
tensor([0, 1])
"""

from __future__ import annotations

from typing import Literal

import torch

from dpdd.common.methods.dp_kip.kernels import FeatureMap, FullyConnectedNTK, centred, coefficients, linear_weights
from dpdd.common.methods.dp_kip.random_networks import EmpiricalNTK, LeNet, PerceptualFeatures
from dpdd.common.models.backbone import Backbone
from dpdd.common.synthesis.image_embedding import ImageEmbedding
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.teacher import Teacher
from dpdd.server.evaluation.base import Classifier
from dpdd.server.evaluation.frozen_features import OnBackbone
from dpdd.server.evaluation.learner_settings import LearnerSettings
from dpdd.server.evaluation.training_data import check_channels, training_data

KernelName = Literal["embedding", "features", "ntk", "perceptual", "entk"]
"""Which kernel."""

SHARPNESS = 10.0
"""Ridge regression gives scores around 0 to 1; logits are about so many times that."""

_PICTURE = {1: 7, 3: 4}
"""The side of the small picture in the embedding of a set that brings none, by channels: as SPS is used."""

_AT_ONCE = 500


def kernel_regression(
    dataset: LabelledSet, kernel: KernelName, settings: LearnerSettings, public: Backbone | None
) -> Classifier:
    """The regression on `dataset`; `public` is needed for `embedding` and `features`."""
    images, labels = training_data(dataset, settings)
    targets, ridge = centred(labels, len(dataset.classes)).double(), settings.krr.ridge
    if kernel == "ntk":
        support, ntk = images.double(), FullyConnectedNTK(settings.krr.depth)
        dual = SHARPNESS * coefficients(ntk(support, support), targets, ridge)
        return lambda seen: (ntk(seen.double(), support) @ dual).to(seen)
    features = _features(kernel, dataset, public)
    with torch.no_grad():
        of_support = torch.cat([features(part) for part in images.split(_AT_ONCE)])
    weights = (SHARPNESS * linear_weights(of_support.double(), targets, ridge)).float()
    if kernel == "features" and public is not None:
        return OnBackbone(public.network, public.card.sha256, lambda _images, seen: seen @ weights.T)
    if kernel == "embedding" and public is not None:
        network, embedding = public.network, _embedding(dataset, public)
        return OnBackbone(
            network, public.card.sha256, lambda images, seen: embedding.of(network, images, seen) @ weights.T
        )
    return lambda seen: features(seen) @ weights.T


def _features(kernel: KernelName, dataset: LabelledSet, public: Backbone | None) -> FeatureMap:
    channels, height, width = dataset.images.shape[1:]
    if kernel == "perceptual":
        return PerceptualFeatures(channels)
    if kernel == "entk":
        return EmpiricalNTK(LeNet((channels, height, width))).features
    assert public is not None  # the learner insists on one
    network = public.network
    check_channels("synthetic", channels, network)
    if kernel == "features":
        return network.features
    embedding = _embedding(dataset, public)
    return lambda images: embedding.of(network, images, network.features(images))


def _embedding(dataset: LabelledSet, public: Backbone) -> ImageEmbedding:
    """The one that the set was made with, where it says so, or else as SPS's defaults have it."""
    teacher = dataset.teacher
    if isinstance(teacher, Teacher) and teacher.backbone_sha256 == public.card.sha256:
        return teacher.embedding
    network, channels = public.network, public.card.architecture.channels
    features = min(network.default_features, network.whitening.dimensions)
    return ImageEmbedding(features, _PICTURE.get(channels, 0), channels)
