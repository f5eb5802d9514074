"""What a synthetic set is worth to somebody who also has a public backbone: a linear probe, fine-tuning, an ensemble.

All of it is post-processing of the synthetic set. The test set is looked at once, at the end: every setting below was
fixed without it, and there is no early stopping.

Soft labels are used where the set has them. Shifts (and mirror images where asked for) are drawn anew at every step.

>>> import numpy as np, torch
>>> from dpdd.common.models.convnet import ConvNet, ConvNetArchitecture
>>> images = np.zeros((20, 1, 8, 8), np.uint8)
>>> images[10:, :, :4] = 255
>>> labels = np.repeat([0, 1], 10)
>>> made = SyntheticSet(images, labels, ("dark", "light"))
>>> test = LabelledImages(images, labels, ("dark", "light"))
>>> network = ConvNet(ConvNetArchitecture(channels=1, height=8, width=8, classes=3, widths=(4, 6)))
>>> linear_probe(made, network, test, ProbeSettings(copies=2), seed=0).mean
1.0
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from dpdd.common.config import Settings
from dpdd.common.datasets import LabelledImages
from dpdd.common.errors import ConfigError
from dpdd.common.models.probe import extract
from dpdd.common.models.tapped import FeatureNet
from dpdd.common.models.training import augment
from dpdd.common.progress import Progress, silent
from dpdd.common.randomness import subseed
from dpdd.common.synthesis.dataset import SyntheticSet
from dpdd.server.evaluate import Accuracy, targets
from dpdd.server.gsam import GSAM

_TEST_BATCH = 500


class ProbeSettings(Settings):
    """Multinomial logistic regression on frozen features of `copies` augmented copies of the synthetic images."""

    runs: Annotated[int, Field(ge=1, le=100)] = 1
    copies: Annotated[int, Field(ge=1)] = 5
    shift: Annotated[int, Field(ge=0)] = 2
    flip: bool = False
    decay: Annotated[float, Field(ge=0.0)] = 1e-3
    iterations: Annotated[int, Field(ge=1)] = 200


class FineTuneSettings(Settings):
    """All weights, BatchNorm frozen: AdamW inside GSAM, a cosine for the learning rate and with it for `rho`.

    `rho = 0` is AdamW alone, at half the time. Without a warm-up the first steps harm the public weights: on 1,000
    MNIST images (a public proxy; `gray28`, 60 steps) GSAM had 68 % without and 92 % with it, AdamW alone 90 and 94 %.
    """

    runs: Annotated[int, Field(ge=1, le=100)] = 1
    steps: Annotated[int, Field(ge=1)] = 300
    batch: Annotated[int, Field(ge=1)] = 128
    learning_rate: Annotated[float, Field(gt=0.0)] = 3e-3
    weight_decay: Annotated[float, Field(ge=0.0)] = 5e-4
    warmup: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    shift: Annotated[int, Field(ge=0)] = 2
    flip: bool = False
    rho: Annotated[float, Field(ge=0.0)] = 0.05
    alpha: Annotated[float, Field(ge=0.0)] = 0.1


def linear_probe(
    made: SyntheticSet,
    backbone: FeatureNet,
    test: LabelledImages,
    settings: ProbeSettings,
    seed: int,
    progress: Progress = silent,
) -> Accuracy:
    """Fit `settings.runs` linear classifiers on the frozen features of `made`, and test each."""
    _check(made, backbone, test)
    images, labels = torch.from_numpy(made.images.copy()), targets(made)
    test_features = _features(backbone, test)
    scores = []
    for run in range(settings.runs):
        generator = torch.Generator().manual_seed(subseed(seed, f"linear probe {run}"))
        features = []
        for done in range(settings.copies):
            features.append(extract(backbone, augment(images, settings.shift, settings.flip, generator)))
            progress(f"features for linear probe {run + 1} of {settings.runs}", done + 1, settings.copies)
        repeated = labels.repeat(settings.copies, *[1] * (labels.ndim - 1))
        weight, bias = _regress(torch.cat(features), repeated, len(made.classes), settings)
        answers = functional.linear(test_features, weight, bias).argmax(dim=1)
        scores.append(_share(answers, test))
    return Accuracy(tuple(scores))


def fine_tune(
    made: SyntheticSet,
    backbone: FeatureNet,
    test: LabelledImages,
    settings: FineTuneSettings,
    seed: int,
    progress: Progress = silent,
) -> Accuracy:
    """Fine-tune `settings.runs` copies of `backbone` on `made`, and test each."""
    _check(made, backbone, test)
    return alone(fine_tuned(made, backbone, settings, seed, progress), test)


def ensemble(
    made: SyntheticSet,
    backbone: FeatureNet,
    test: LabelledImages,
    settings: FineTuneSettings,
    seed: int,
    progress: Progress = silent,
) -> Accuracy:
    """The same networks as `fine_tune` gives for this seed, asked together: one figure."""
    _check(made, backbone, test)
    return together(fine_tuned(made, backbone, settings, seed, progress), test)


def fine_tuned(
    made: SyntheticSet, backbone: FeatureNet, settings: FineTuneSettings, seed: int, progress: Progress = silent
) -> list[FeatureNet]:
    """`settings.runs` networks, in eval mode, fine-tuned on `made`; `backbone` itself stays as it is.

    For both figures train once: ``networks = fine_tuned(...)``, then `alone` and `together` of them.
    """
    networks = []
    for run in range(settings.runs):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(subseed(seed, f"fine-tuning {run}"))
            what = f"fine-tuning network {run + 1} of {settings.runs}"
            networks.append(_fine_tune(made, backbone, settings, what, progress))
    return networks


def alone(networks: Sequence[FeatureNet], test: LabelledImages) -> Accuracy:
    """The accuracy of each network."""
    return Accuracy(tuple(_share(probabilities(network, test).argmax(dim=1), test) for network in networks))


def together(networks: Sequence[FeatureNet], test: LabelledImages) -> Accuracy:
    """The accuracy of the average of their probabilities."""
    total = torch.stack([probabilities(network, test) for network in networks]).mean(dim=0)
    return Accuracy((_share(total.argmax(dim=1), test),))


def probabilities(network: FeatureNet, test: LabelledImages) -> Tensor:
    """What `network` answers to each image."""
    with torch.no_grad():
        logits = functional.linear(_features(network, test), network.head.weight, network.head.bias)
    return logits.softmax(dim=1)


def _fine_tune(
    made: SyntheticSet, backbone: FeatureNet, settings: FineTuneSettings, what: str, progress: Progress
) -> FeatureNet:
    network = copy.deepcopy(backbone)
    network.head = nn.Linear(backbone.head.in_features, len(made.classes))
    network.eval().requires_grad_(True)  # eval: BatchNorm keeps its public statistics; there is no dropout
    images, labels = torch.from_numpy(made.images.copy()), targets(made)
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
        batch = augment(images[pick], settings.shift, settings.flip, generator).float() / 255
        wanted = labels[pick]

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


def _features(network: FeatureNet, test: LabelledImages) -> Tensor:
    return extract(network, torch.from_numpy(np.ascontiguousarray(test.images)), _TEST_BATCH)


def _share(answers: Tensor, test: LabelledImages) -> float:
    return float((answers.numpy() == test.labels).mean())


def _check(made: SyntheticSet, backbone: FeatureNet, test: LabelledImages) -> None:
    channels = backbone.mean.shape[1]
    for what, images in (("synthetic", made.images), ("test", test.images)):
        if len(images) == 0:
            raise ConfigError(f"there are no {what} images; at least one is needed")
        if images.shape[1] != channels:
            raise ConfigError(
                f"the {what} images have {images.shape[1]} channels, but the backbone was made for {channels}; "
                "choose another backbone"
            )
    if len(made.classes) != len(test.classes):
        raise ConfigError(f"the synthetic set has {len(made.classes)} classes, but the test set {len(test.classes)}")
