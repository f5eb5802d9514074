"""The learner `convnet-dd`: how the literature of dataset distillation judges a set of images with hard labels.

ConvNets from scratch (`dpdd.common.models.evaluation_convnet`) under DSA augmentation, one kind of change per batch
(`dsa`). The protocol is that of any network: `dd_networks`. Images are standardised by the mean and deviation of each
channel of the synthetic set itself, which is public; the authors take those of the real data.

>>> from dpdd.server.evaluation.learner_settings import ConvNetDDSettings
>>> import numpy as np
>>> images = np.zeros((20, 1, 8, 8), np.uint8)
>>> images[10:, :, :4] = 255
>>> dataset = LabelledSet(images, np.repeat([0, 1], 10), ("dark", "light"))
>>> settings = LearnerSettings(convnet_dd=ConvNetDDSettings(runs=1, width=4, steps=3))
>>> [classifier] = dd_convnets(dataset, settings, seed=0)
>>> classifier(torch.rand(5, 1, 8, 8)).shape
torch.Size([5, 2])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpdd.common.models.evaluation_convnet import EvaluationConvNet, depth_for
from dpdd.common.progress import Progress, silent
from dpdd.common.randomness import subseed
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.server.evaluation.base import Classifier
from dpdd.server.evaluation.convnet import NetworkT, TrainedConvNet, TrainedNetwork
from dpdd.server.evaluation.dsa import augment
from dpdd.server.evaluation.learner_settings import (
    AugmentationKind,
    ConvNetPoolSettings,
    LearnerSettings,
    ProtocolSettings,
)
from dpdd.server.evaluation.training_data import training_data

Shape: TypeAlias = tuple[int, int, int]


def dd_convnets(
    dataset: LabelledSet, settings: LearnerSettings, seed: int, progress: Progress = silent
) -> list[Classifier]:
    """`settings.convnet_dd.runs` ConvNets, trained on the images of `dataset` and their hard labels."""
    own = settings.convnet_dd

    def build(shape: Shape, classes: int) -> EvaluationConvNet:
        return EvaluationConvNet(shape, classes, own.width, own.depth or depth_for(shape), padded=True)

    trained = dd_networks(dataset, settings, own, build, "convnet-dd", seed, progress, called="ConvNet")
    return [TrainedConvNet(each.network, each.mean, each.std, own.width) for each in trained]


def dd_networks(
    dataset: LabelledSet,
    settings: LearnerSettings,
    own: ProtocolSettings,
    build: Callable[[Shape, int], NetworkT],
    learner: str,
    seed: int,
    progress: Progress = silent,
    *,
    called: str,
) -> list[TrainedNetwork[NetworkT]]:
    """`own.runs` networks by the literature's protocol, each built anew from the shape of images and the classes."""
    images, labels = training_data(dataset, settings.model_copy(update={"labels": "hard"}))
    kinds = own.kinds(settings.flips)
    trained = []
    for run in range(own.runs):
        drawn = subseed(seed, f"{learner} {run}")
        report = partial(progress, f"training {called} {run + 1} of {own.runs} ({learner})")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(drawn)
            network = build((images.shape[1], images.shape[2], images.shape[3]), len(dataset.classes))
        trained.append(_train(images, labels, network, own, kinds, drawn, report))
    return trained


def batches(count: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Positions of records, `size` at a time and without end: every record once in each pass, in a new order.

    The last batch of a pass is what is left; its size varies by one at most from the others'.

    >>> source = batches(5, 3, torch.Generator().manual_seed(1))
    >>> [len(next(source)) for _ in range(4)]
    [3, 2, 3, 2]
    """
    while True:
        yield from torch.randperm(count, generator=generator).tensor_split(-(-count // size))


def _train(
    images: Tensor,
    labels: Tensor,
    network: NetworkT,
    own: ProtocolSettings,
    kinds: Sequence[AugmentationKind],
    seed: int,
    progress: Callable[[int, int], None],
) -> TrainedNetwork[NetworkT]:
    mean = images.mean(dim=(0, 2, 3), keepdim=True)
    std = images.std(dim=(0, 2, 3), keepdim=True, correction=0) + 1e-6
    images = (images - mean) / std
    generator = torch.Generator().manual_seed(subseed(seed, "batches"))

    def loss(pick: Tensor) -> Tensor:
        return functional.cross_entropy(network(augment(images[pick], kinds, generator)), labels[pick])

    optimise(network, own, batches(len(labels), own.batch, generator), loss, progress)
    return TrainedNetwork(network.eval(), mean, std)


def optimise(
    network: nn.Module,
    own: ProtocolSettings | ConvNetPoolSettings,
    chosen: Iterator[Tensor],
    loss: Callable[[Tensor], Tensor],
    progress: Callable[[int, int], None],
) -> None:
    """`own.steps` steps of AdamW, one cycle; `loss` is of the records at the `chosen` positions."""
    optimiser = torch.optim.AdamW(network.parameters(), lr=own.learning_rate, weight_decay=own.weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, own.learning_rate, total_steps=own.steps + 1)
    network.train()
    for step in range(own.steps):
        value = loss(next(chosen))
        optimiser.zero_grad(set_to_none=True)
        value.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
        progress(step + 1, own.steps)
