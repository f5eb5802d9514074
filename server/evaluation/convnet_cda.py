"""The learner `convnet-cda`: the network of DP-CDA's table 1, trained from scratch on hard labels.

Two convolutions with ReLU, batch norm and max pooling, and three layers with dropout between; Adam at 0.001, as in the
paper. Its schedule and number of steps are not said there: a cosine, and `steps` in batches of `batch`, as for
`convnet`. Images are not altered.

>>> sum(each.numel() for each in table_1((1, 28, 28), 10).parameters())  # of which 3,136 x 100 between two layers
344330
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from dpdd.common.progress import Progress, silent
from dpdd.common.randomness import subseed
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.server.evaluation.base import Classifier
from dpdd.server.evaluation.convnet import TrainedNetwork
from dpdd.server.evaluation.learner_settings import LearnerSettings
from dpdd.server.evaluation.training_data import training_data

RATE, HIDDEN, DROPPED = 1e-3, 100, 0.5


def table_1(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """The network, for images of any shape."""
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.BatchNorm2d(32),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.BatchNorm2d(64),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.Flatten(),
        nn.Linear(64 * -(-height // 4) * -(-width // 4), HIDDEN),
        nn.ReLU(),
        nn.Dropout(DROPPED),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(),
        nn.Dropout(DROPPED),
        nn.Linear(HIDDEN, classes),
    )


def cda_convnets(
    dataset: LabelledSet, settings: LearnerSettings, seed: int, progress: Progress = silent
) -> list[Classifier]:
    """`settings.runs` of them, standardised by the mean and deviation of the synthetic images."""
    images, labels = training_data(dataset, settings.model_copy(update={"labels": "hard"}))
    mean, std = images.mean(), images.std() + 1e-6
    trained: list[Classifier] = []
    for run in range(settings.runs):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(subseed(seed, f"convnet-cda {run}"))
            network = table_1(tuple(images.shape[1:]), len(dataset.classes)).train()
            optimiser = torch.optim.Adam(network.parameters(), lr=RATE)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, settings.steps)
            for step in range(settings.steps):
                pick = torch.randint(len(labels), (max(min(settings.batch, len(labels)), 2),))
                loss = functional.cross_entropy(network((images[pick] - mean) / std), labels[pick])
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
                schedule.step()
                progress(f"training ConvNet {run + 1} of {settings.runs} (convnet-cda)", step + 1, settings.steps)
        trained.append(TrainedNetwork(network.eval(), mean, std))
    return trained
