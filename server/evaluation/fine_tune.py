"""The learners `fine-tune` and `ensemble`: all weights of a public backbone, trained further by GSAM.

Every default was fixed without the test set, and there is no early stopping. Soft and hard labels come with shifts (and
mirror images where asked for) that are drawn anew at every step; teacher-labelled augmentations are taken as they are.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpdd.common.models.feature_network import FeatureNetwork
from dpdd.common.models.training import augment
from dpdd.common.progress import Progress, silent
from dpdd.common.randomness import subseed
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.server.evaluation.base import Classifier
from dpdd.server.evaluation.gsam import GSAM
from dpdd.server.evaluation.learner_settings import LearnerSettings
from dpdd.server.evaluation.training_data import check_channels, labels_of, training_data


def fine_tuned(
    dataset: LabelledSet, backbone: FeatureNetwork, settings: LearnerSettings, seed: int, progress: Progress = silent
) -> list[FeatureNetwork]:
    """`settings.runs` networks, in eval mode, fine-tuned on `dataset`; `backbone` itself stays as it is."""
    check_channels("synthetic", dataset.images.shape[1], backbone)
    networks = []
    for run in range(settings.runs):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(subseed(seed, f"fine-tuning {run}"))
            what = f"fine-tuning network {run + 1} of {settings.runs}"
            networks.append(_fine_tune(dataset, backbone, settings, what, progress))
    return networks


def together(networks: Sequence[Classifier]) -> Classifier:
    """One classifier: the average of the probabilities of several."""

    def logits(images: Tensor) -> Tensor:
        mean = torch.stack([network(images).softmax(dim=1) for network in networks]).mean(dim=0)
        return mean.double().log()  # double: different probabilities stay different

    return logits


def _fine_tune(
    dataset: LabelledSet, backbone: FeatureNetwork, learner: LearnerSettings, what: str, progress: Progress
) -> FeatureNetwork:
    settings = learner.fine_tune
    network = copy.deepcopy(backbone)
    network.head = nn.Linear(backbone.head.in_features, len(dataset.classes))
    network.eval().requires_grad_(True)  # eval: BatchNorm keeps its public statistics; there is no dropout
    altered = labels_of(dataset, learner) == "teacher"
    images, labels = training_data(dataset, learner)
    generator = torch.Generator().manual_seed(torch.initial_seed())
    groups = [
        {"params": [p for p in network.parameters() if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in network.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(groups, lr=settings.learning_rate)
    gsam = GSAM(optimiser, settings.rho, settings.alpha)
    for step in range(settings.steps):
        height = _schedule(step / settings.steps, settings.warmup)
        for group in optimiser.param_groups:
            group["lr"] = settings.learning_rate * height
        gsam.rho = settings.rho * height  # algorithm 1: rho follows the learning rate
        pick = torch.randint(len(images), (min(settings.batch, len(images)),), generator=generator)
        batch, wanted = images[pick], labels[pick]
        if not altered:
            batch = augment(batch, settings.shift, learner.flips, generator)

        def loss_of(batch: Tensor = batch, wanted: Tensor = wanted) -> Tensor:
            return functional.cross_entropy(network(batch), wanted)

        if settings.rho > 0.0:
            gsam.step(loss_of)
        else:
            optimiser.zero_grad(set_to_none=True)
            loss_of().backward()
            optimiser.step()
        progress(what, step + 1, settings.steps)
    return network.requires_grad_(False)


def _schedule(progress: float, warmup: float) -> float:
    """The share of the learning rate at a share of the run: a line up, then half a cosine down."""
    if progress < warmup:
        return (progress + 0.02) / (warmup + 0.02)
    return 0.5 * (1.0 + math.cos(math.pi * (progress - warmup) / (1.0 - warmup)))
