"""Rounds in which silos share small synthetic sets, and a global network learns from them: FedDM and FedLAP-DP.

In every round each silo matches its records at a few networks around the global one, by the matching family's signals,
and sends its set; the coordinator trains the global network on all sets, each weighed by the silo's class counts. The
sets and the network go on in the next round. Both are small re-implementations *in the manner of* the papers:

- *FedDM* (Xiong et al. 2022), **not private**: mean features of each class, at networks within a distance of the global
  one. Images begin as noise, not as real ones; mean logits are not matched; a handful of networks, each of which is
  matched for some steps, takes the place of a new one in every step; signals are clipped as in `dm`.
- *FedLAP-DP* (Wang et al. 2024): class gradients, by angle, at the points of a path: a silo trains a copy of the global
  network on its own set between them. The radius within which a set is trusted is not looked for: the path has a fixed
  length, and so has the coordinator's training. Class counts are released, not public.

Networks are the literature's ConvNet without bias (`RandomNet`), trained here, too, with the augmentation of
`convnet-dd`.

Privacy of FedLAP-DP. Neighbours: one labelled record of one silo added or removed. Records are looked at in draws
alone: one Gaussian over all classes' sums of clipped gradients and counts, on a fresh Poisson sample, exactly as a draw
of matching (`dpdd.client.mechanisms.matching`), where sensitivity 1 is enforced. The path, the set and the global
network are functions of noisy sums and public seeds, so σ and rate, fixed beforehand, bound each draw whatever came
before. The event is **all draws of all rounds**, `PoissonGaussian(σ, rate, rounds · points)`. (According to the
authors of SPS, who compare with it, the published code accounts for one round by itself.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from dpdd.client.mechanisms.matching import released_draws
from dpdd.client.records.records import Records
from dpdd.common.config import Settings
from dpdd.common.data.dead_leaves import dead_leaves
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.matching.settings import COUNT
from dpdd.common.methods.matching.settings import MethodSettings as MatchingSettings
from dpdd.common.methods.matching.signals import Draw, Signals
from dpdd.common.methods.matching.specification import draw_layout as matching_layout
from dpdd.common.methods.matching.specification import signal_settings
from dpdd.common.methods.matching.synthesis import targets
from dpdd.common.methods.plan import Plan
from dpdd.common.models.random_net import RandomNet, features
from dpdd.common.privacy.accounting import Guarantee
from dpdd.common.privacy.clipping import Layout
from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.events import Event, NonPrivate
from dpdd.common.privacy.sampling import sampled_event
from dpdd.common.progress import Progress, silent
from dpdd.common.synthesis.image_pyramid import ImagePyramid, outside
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.statistics import of_one_silo
from dpdd.common.wire.request import ReleaseRequest
from dpdd.scenarios.baselines.base import Task, seed_of
from dpdd.server.evaluation.dsa import augment
from dpdd.server.evaluation.learner_settings import AUGMENTATION_KINDS


class SharedSetsSettings(Settings):
    """Rounds, networks (`points`) of a silo in each, and steps of the images at each of them.

    `path_steps` is how far a silo trains between points (gradients), `radius` how far a point is from the global
    network (features), as a share of its weights' norm. All silos' sets together have `images_per_class`.
    """

    signal: Literal["features", "gradients"] = "gradients"
    rounds: Annotated[int, Field(ge=1)] = 3
    points: Annotated[int, Field(ge=1)] = 3
    image_steps: Annotated[int, Field(ge=1)] = 10
    path_steps: Annotated[int, Field(ge=0)] = 5
    train_steps: Annotated[int, Field(ge=1)] = 60
    images_per_class: Annotated[int, Field(ge=1)] = 50
    rate: Annotated[float, Field(gt=0.0, le=1.0)] = 0.1
    width: Annotated[int, Field(ge=4)] = 16
    depth: Annotated[int, Field(ge=1)] = 3
    radius: Annotated[float, Field(ge=0.0)] = 0.3
    learning_rate: Annotated[float, Field(gt=0.0)] = 0.1
    network_rate: Annotated[float, Field(gt=0.0)] = 3e-3
    flips: bool = True

    @property
    def draws(self) -> int:
        """Of a silo, in all rounds: what is accounted for."""
        return self.rounds * self.points

    def event(self, sigma: float) -> Event:
        """What a silo releases in all rounds."""
        return sampled_event(sigma, self.rate, self.draws)

    @property
    def matching(self) -> MatchingSettings:
        """A draw of it, as the matching family has it."""
        return MatchingSettings(
            signal=self.signal,
            schedule="coupled",
            draws=1,
            networks=1,
            rate=self.rate,
            width=self.width,
            depth=self.depth,
            dimensions=0,
            augment=False,
            encoding="exact",
        )


@dataclass(eq=False)
class SiloSet:
    """A silo's set on the way, and its class counts so far: noisy ones, where it is private."""

    images: ImagePyramid
    labels: Tensor
    counts: NDArray[np.float64]

    @property
    def weights(self) -> Tensor:
        """What each image counts for: its class's share of the silo, all of a class together its count."""
        per_class = self.labels.bincount(minlength=len(self.counts)).clamp_min(1)
        of_class = torch.from_numpy(np.maximum(self.counts, 0.0)).float() / per_class
        return of_class[self.labels]

    def shown(self) -> Tensor:
        """The images, fixed, in [0, 1]."""
        return self.images.images().detach().clamp(0.0, 1.0)


@dataclass(frozen=True, eq=False)
class Shared:
    """What came of all rounds: the global network, and the sets that silos sent last."""

    network: RandomNet
    images: LabelledSet

    def __call__(self, images: Tensor) -> Tensor:
        """The network's logits."""
        return features(images, self.network.kernels) @ self.network.head.T


def draw_layout(task: Task, settings: SharedSetsSettings) -> Layout:
    """What a silo sums up in one draw."""
    return matching_layout(settings.matching, RunDescription(task.train.classes, task.train.shape, 0))


def shared_sets(
    task: Task, settings: SharedSetsSettings, sigma: float | None, entropy: Entropy, progress: Progress = silent
) -> Shared:
    """All rounds of all silos; each releases `settings.event(sigma)`, or, without a σ, sums that nothing protects."""
    seed = seed_of(entropy)
    generator = torch.Generator().manual_seed(seed)
    shape, classes = task.train.shape, task.classes
    whole = RandomNet.draw(seed, 0, shape, settings.width, settings.depth, classes)
    each = math.ceil(settings.images_per_class / len(task.shares))
    labels = torch.arange(classes).repeat_interleave(each)
    sets = [SiloSet(ImagePyramid(len(labels), shape, generator), labels, np.zeros(classes)) for _ in task.shares]
    request = ReleaseRequest("baseline", "psg", {}, math.inf, 1e-5, task.train.classes, shape, public_seed=seed)
    of, done = signal_settings(settings.matching, RunDescription.of(request)), 0
    for number in range(settings.rounds):
        for silo, share in zip(sets, task.shares, strict=True):
            records = Records(task.train.images[share], task.train.labels[share])
            point = whole
            for _ in range(settings.points):
                if settings.signal == "features":
                    point = _nearby(whole, settings.radius, generator)
                signals = Signals(of, _auxiliary(silo, shape, number, seed), (point,))
                wanted, counts = _released(records, request, settings, signals, sigma, entropy)
                silo.counts += counts
                _match(silo, signals.draw(0), wanted, settings)
                if settings.signal == "gradients":
                    point = trained(point, [silo], settings, settings.path_steps, generator)
                done += 1
                progress("matching, in rounds", done, settings.draws * len(sets))
        whole = trained(whole, sets, settings, settings.train_steps, generator)
    pixels = np.concatenate([silo.images.pixels() for silo in sets])
    return Shared(whole, LabelledSet(pixels, labels.repeat(len(sets)).numpy(), task.train.classes))


def trained(
    network: RandomNet, sets: Sequence[SiloSet], settings: SharedSetsSettings, steps: int, generator: torch.Generator
) -> RandomNet:
    """`steps` of Adam on images of these sets, weighed by their counts; the network itself stays as it is."""
    images, labels = torch.cat([silo.shown() for silo in sets]), torch.cat([silo.labels for silo in sets])
    weights = torch.cat([silo.weights for silo in sets])
    weights = weights / weights.mean().clamp_min(1e-12)
    parameters = [weight.clone().requires_grad_(True) for weight in network.weights]
    optimiser = torch.optim.Adam(parameters, lr=settings.network_rate)
    kinds = [kind for kind in AUGMENTATION_KINDS if settings.flips or kind != "flip"]
    for _ in range(steps):
        pick = torch.randperm(len(labels), generator=generator)[:256]
        seen = augment(images[pick], kinds, generator)
        logits = features(seen, tuple(parameters[:-1])) @ parameters[-1].T
        loss = (weights[pick] * functional.cross_entropy(logits, labels[pick], reduction="none")).mean()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    *kernels, head = (parameter.detach() for parameter in parameters)
    return RandomNet(tuple(kernels), head)


def _released(
    records: Records,
    request: ReleaseRequest,
    settings: SharedSetsSettings,
    signals: Signals,
    sigma: float | None,
    entropy: Entropy,
) -> tuple[Tensor, NDArray[np.float64]]:
    """One draw over a silo's records: noisy mean signals (classes, length), and noisy counts of the sample."""
    of = settings.matching
    event = NonPrivate() if sigma is None else sampled_event(sigma, settings.rate, 1)
    plan = Plan(event, Guarantee(math.inf, request.delta, "none"), 0.0, 0)  # the row accounts for all draws together
    arrays = released_draws(records, request, of, signals, plan, entropy, silent).arrays
    statistics = of_one_silo(arrays, event)
    wanted, _ = targets(statistics, of, len(request.classes))
    return wanted[0], statistics.sums[COUNT][:, 0] / of.count_share


def _match(silo: SiloSet, draw: Draw, wanted: Tensor, settings: SharedSetsSettings) -> None:
    """Some steps of the silo's images at one network: distance of features, angle of gradients."""
    optimiser = torch.optim.Adam(silo.images.levels, lr=settings.learning_rate, betas=(0.5, 0.9))
    for _ in range(settings.image_steps):
        images = silo.images.images()
        signals = draw.of_class_means(images, silo.labels, range(len(wanted)))
        if settings.signal == "features":
            distances = (signals - wanted).square().sum(dim=1)
        else:
            distances = 1.0 - functional.cosine_similarity(signals, wanted, dim=1)
        loss = distances.sum() + 10.0 * outside(images)
        optimiser.zero_grad(set_to_none=True)
        loss.backward(inputs=silo.images.levels)
        optimiser.step()


def _nearby(network: RandomNet, radius: float, generator: torch.Generator) -> RandomNet:
    """Every weight moved at random, by `radius` of the layer's norm."""
    moved = []
    for weight in network.weights:
        away = torch.randn(weight.shape, generator=generator)
        moved.append(weight + radius * weight.norm() / away.norm() * away)
    return RandomNet(tuple(moved[:-1]), moved[-1])


def _auxiliary(silo: SiloSet, shape: tuple[int, int, int], number: int, seed: int) -> NDArray[np.float32]:
    """What says how large a signal is: dead leaves at first, then the silo's own set, its classes by turns."""
    if number == 0:
        return dead_leaves(64, *shape, seed)
    by_turns = silo.shown().unflatten(0, (len(silo.counts), -1)).transpose(0, 1).flatten(0, 1)
    return by_turns.numpy().astype(np.float32)
