"""The learner `convnet-pool`: a ConvNet from scratch on public images that the set's teacher labelled softly.

It sees the pool as anybody does who joins the dataset's hashes with the public images: labels are as coarse as they are
stored. Images are mirrored and shifted, each by its own draw.

>>> import numpy as np
>>> from dpdd.common.synthesis.public_pool import LabelledPool, PoolFacts
>>> images = np.random.default_rng(0).integers(0, 256, (20, 1, 8, 8), dtype=np.uint8)
>>> pool = LabelledPool.of(images, np.full((20, 2), 0.5), PoolFacts("noise", "CC0-1.0", ("cat", "dog"), (1, 8, 8)))
>>> dataset = LabelledSet(images[:2], np.array([0, 1]), ("cat", "dog"), pool=pool)
>>> settings = LearnerSettings(convnet_pool=ConvNetPoolSettings(runs=1, width=4, steps=3))
>>> [classifier] = pool_convnets(dataset, settings, seed=0)
>>> classifier(torch.rand(5, 1, 8, 8)).shape
torch.Size([5, 2])
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from dpdd.common.models.evaluation_convnet import EvaluationConvNet, depth_for
from dpdd.common.progress import Progress, silent
from dpdd.common.randomness import subseed
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.server.evaluation.base import CannotLearn, Classifier
from dpdd.server.evaluation.convnet import TrainedConvNet
from dpdd.server.evaluation.convnet_dd import batches, optimise
from dpdd.server.evaluation.dsa import CHANGES, PUBLISHED
from dpdd.server.evaluation.learner_settings import ConvNetPoolSettings, LearnerSettings

FOR_MOMENTS = 5000
"""Images are enough to know the mean and the deviation of each channel."""


def pool_convnets(
    dataset: LabelledSet, settings: LearnerSettings, seed: int, progress: Progress = silent
) -> list[Classifier]:
    """`settings.convnet_pool.runs` ConvNets, trained on the pool of `dataset`; CannotLearn where it has none."""
    if dataset.pool is None:
        raise CannotLearn("the dataset has no public pool with its images to learn from")
    images, soft = torch.from_numpy(dataset.pool.images), torch.from_numpy(dataset.pool.soft)
    own, trained = settings.convnet_pool, list[Classifier]()
    for run in range(own.runs):
        what = f"training ConvNet {run + 1} of {own.runs} (convnet-pool)"
        trained.append(_train(images, soft, own, settings.flips, subseed(seed, f"convnet-pool {run}"), what, progress))
    return trained


def moved(images: Tensor, flips: bool, generator: torch.Generator) -> Tensor:
    """Every image shifted, and with `flips` half of them mirrored."""
    if flips:
        mirrored = torch.rand(len(images), generator=generator) < 0.5
        images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
    return CHANGES["crop"](images, PUBLISHED, generator)


def _train(
    images: Tensor, soft: Tensor, own: ConvNetPoolSettings, flips: bool, seed: int, what: str, progress: Progress
) -> Classifier:
    few = images[:: max(1, len(images) // FOR_MOMENTS)].float() / 255.0
    mean = few.mean(dim=(0, 2, 3), keepdim=True)
    std = few.std(dim=(0, 2, 3), keepdim=True, correction=0) + 1e-6
    shape = (images.shape[1], images.shape[2], images.shape[3])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = EvaluationConvNet(shape, soft.shape[1], own.width, own.depth or depth_for(shape), padded=True)
    generator = torch.Generator().manual_seed(subseed(seed, "batches"))

    def loss(pick: Tensor) -> Tensor:
        seen = moved((images[pick].float() / 255.0 - mean) / std, flips, generator)
        return functional.cross_entropy(network(seen), soft[pick])

    optimise(network, own, batches(len(images), own.batch, generator), loss, partial(progress, what))
    return TrainedConvNet(network.eval(), mean, std, own.width)
