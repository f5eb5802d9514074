"""DP-SGD from scratch, in one silo (DP-SGD) and as the local steps of several (DP-FedAvg), with Opacus' gradients.

The network is the literature's ConvNet, narrow and with group norm, from random weights: nothing public helps it.

Neighbours: one labelled record of one silo added or removed. As in `private_finetune`, a record's gradient is clipped
over all weights together, on an integer grid; a step releases the sum over a Poisson sample with discrete Gaussian
noise in every entry.

DP-FedAvg has record-level privacy at each silo. In a round every silo goes `local_steps` of such steps from the global
weights, which are public, and sends where it arrived: a function of its own noisy sums. Its event is all of its steps
in all rounds, `PoissonGaussian(σ, rate, rounds · local_steps)`. The coordinator averages, by the sizes of silos. Noise
of one silo never counts for another's guarantee.

The number of a silo's records is taken as public to one digit, by which sums are divided: in the baseline's favour.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from dpdd.common.config import Settings
from dpdd.common.methods.dp_geng.expert import build_expert
from dpdd.common.privacy import discrete_gaussian
from dpdd.common.privacy.clipping import FIXED_POINT_ONE
from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.events import Event
from dpdd.common.privacy.sampling import poisson_sample, sampled_event
from dpdd.common.progress import Progress, silent
from dpdd.scenarios.baselines.base import Positions, public_size, seed_of
from dpdd.scenarios.baselines.private_finetune import PrivateSteps


class DPSGDSettings(Settings):
    """DP-SGD with momentum, in `rounds` of `local_steps`; in one silo the rounds make no difference.

    `learning_rate` falls by a cosine, `momentum` starts anew in every round.
    """

    rounds: Annotated[int, Field(ge=1)] = 1
    local_steps: Annotated[int, Field(ge=1)] = 100
    rate: Annotated[float, Field(gt=0.0, le=1.0)] = 0.04
    width: Annotated[int, Field(ge=4)] = 16
    depth: Annotated[int, Field(ge=1)] = 3
    learning_rate: Annotated[float, Field(gt=0.0)] = 2.0
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.5
    clip: Annotated[float, Field(gt=0.0)] = 1.0
    augmentations: Annotated[int, Field(ge=1)] = 1
    shift: Annotated[int, Field(ge=0)] = 0
    flip: bool = False
    at_once: Annotated[int, Field(ge=1)] = 64

    @property
    def steps(self) -> int:
        """Of a silo, in all rounds."""
        return self.rounds * self.local_steps

    def event(self, sigma: float) -> Event:
        """What a silo releases in all rounds."""
        return sampled_event(sigma, self.rate, self.steps)


class ScratchNet(nn.Module):
    """The literature's ConvNet with group norm, all weights trained."""

    def __init__(self, shape: tuple[int, int, int], classes: int, settings: DPSGDSettings, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.network = build_expert(shape, classes, settings.width, settings.depth, "group")
        self.train()

    def forward(self, images: Tensor) -> Tensor:
        """Logits of images in [0, 1]."""
        logits: Tensor = self.network(images)
        return logits

    def trained(self) -> list[nn.Parameter]:
        """All weights."""
        return list(self.parameters())


def federated(
    network: ScratchNet,
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    shares: Sequence[Positions],
    settings: DPSGDSettings,
    sigma: float,
    entropy: Entropy,
    progress: Progress = silent,
) -> ScratchNet:
    """The network after all rounds of the silos, each with its share; each releases `settings.event(sigma)`."""
    sizes = np.array([public_size(len(share)) for share in shares], dtype=np.float64)
    generator = torch.Generator().manual_seed(seed_of(entropy))
    whole = copy.deepcopy(network)
    done = 0
    for number in range(settings.rounds):
        arrived = []
        for share in shares:
            local = copy.deepcopy(whole)
            private = PrivateSteps(local, settings)
            optimiser = torch.optim.SGD(local.trained(), lr=0.0, momentum=settings.momentum)
            for step in range(settings.local_steps):
                part = (number * settings.local_steps + step) / settings.steps
                optimiser.param_groups[0]["lr"] = settings.learning_rate * 0.5 * (1.0 + np.cos(np.pi * part))
                _noisy_gradient(private, images, labels, share, settings, sigma, entropy, generator)
                optimiser.step()
                done += 1
                progress("DP-SGD from scratch", done, settings.steps * len(shares))
            private.close()
            arrived.append([weight.detach() for weight in local.trained()])
        with torch.no_grad():
            shares_of_all = torch.from_numpy(sizes / sizes.sum()).float()
            for at, weight in enumerate(whole.trained()):
                weight.copy_(torch.tensordot(shares_of_all, torch.stack([own[at] for own in arrived]), dims=1))
    return whole.eval()


def _noisy_gradient(
    private: PrivateSteps,
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    share: Positions,
    settings: DPSGDSettings,
    sigma: float,
    entropy: Entropy,
    generator: torch.Generator,
) -> None:
    """Sample, sum, add noise; the result, divided by the expected size of a sample, becomes the gradient."""
    scale = discrete_gaussian.scale_for(sigma * FIXED_POINT_ONE)
    pick = share[poisson_sample(len(share), settings.rate, entropy)]
    sums = private.gradient(torch.from_numpy(images[pick]), torch.from_numpy(labels[pick]), generator)
    unit = settings.clip / FIXED_POINT_ONE / (settings.rate * public_size(len(share)))
    for parameter, total in zip(private.network.trained(), sums, strict=True):
        drawn = torch.from_numpy(discrete_gaussian.sample(scale, total.numel(), entropy)).view(total.shape)
        parameter.grad = ((total + drawn) * unit).to(parameter.dtype)
