"""The learner `convnet-dd`: how the literature of dataset distillation judges a set of images with hard labels.

ConvNets from scratch (`dpdd.common.models.evaluation_convnet`) under DSA augmentation, one kind of change per batch
(`dsa`). Images are standardised by the mean and deviation of each channel of the synthetic set itself, which is public;
the authors take those of the real data.

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

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpdd.common.models.evaluation_convnet import EvaluationConvNet, depth_for
from dpdd.common.progress import Progress, silent
from dpdd.common.randomness import subseed
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.server.evaluation.base import Classifier
from dpdd.server.evaluation.convnet import TrainedConvNet
from dpdd.server.evaluation.dsa import augment
from dpdd.server.evaluation.learner_settings import (
    AugmentationKind,
    ConvNetDDSettings,
    ConvNetPoolSettings,
    LearnerSettings,
)
from dpdd.server.evaluation.training_data import training_data


def dd_convnets(
    dataset: LabelledSet, settings: LearnerSettings, seed: int, progress: Progress = silent
) -> list[Classifier]:
    """`settings.convnet_dd.runs` ConvNets, trained on the images of `dataset` and their hard labels."""
    own = settings.convnet_dd
    images, labels = training_data(dataset, settings.model_copy(update={"labels": "hard"}))
    kinds = own.kinds(settings.flips)
    trained: list[Classifier] = []
    for run in range(own.runs):
        what = f"training ConvNet {run + 1} of {own.runs} (convnet-dd)"
        drawn = subseed(seed, f"convnet-dd {run}")
        trained.append(_train(images, labels, len(dataset.classes), own, kinds, drawn, what, progress))
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
    classes: int,
    own: ConvNetDDSettings,
    kinds: Sequence[AugmentationKind],
    seed: int,
    what: str,
    progress: Progress,
) -> Classifier:
    mean = images.mean(dim=(0, 2, 3), keepdim=True)
    std = images.std(dim=(0, 2, 3), keepdim=True, correction=0) + 1e-6
    images = (images - mean) / std
    shape = (images.shape[1], images.shape[2], images.shape[3])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = EvaluationConvNet(shape, classes, own.width, own.depth or depth_for(shape), padded=True)
    generator = torch.Generator().manual_seed(subseed(seed, "batches"))

    def loss(pick: Tensor) -> Tensor:
        return functional.cross_entropy(network(augment(images[pick], kinds, generator)), labels[pick])

    optimise(network, own, batches(len(labels), own.batch, generator), loss, partial(progress, what))
    return TrainedConvNet(network.eval(), own.width, mean, std)


def optimise(
    network: nn.Module,
    own: ConvNetDDSettings | ConvNetPoolSettings,
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
