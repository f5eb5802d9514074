"""KIP from moments: a support set, optimised until its kernel ridge classifier is the one that the releases contain.

Images pass the same embedding as records, norm and all. They depend on each other through the kernel matrix, so the
whole set is one batch. It starts as SPS's images do, from small pictures drawn from the released Gaussians, if there
are any, or else from smooth noise; never from records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.dp_kip.kernels import centred, linear_weights
from dpdd.common.methods.dp_kip.moments import Goal
from dpdd.common.methods.dp_kip.settings import MomentsSettings
from dpdd.common.methods.sps.classifier import ridge, shrunk
from dpdd.common.methods.sps.moment_loss import MomentLoss
from dpdd.common.methods.sps.released_classifier import ReleasedClassifier
from dpdd.common.methods.sps.settings import MethodSettings
from dpdd.common.methods.sps.specification import backbone, with_backbone
from dpdd.common.models.feature_network import FeatureNetwork
from dpdd.common.randomness import subseed
from dpdd.common.synthesis.image_embedding import ImageEmbedding
from dpdd.common.synthesis.image_pyramid import ImagePyramid, outside, roughness
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.runner import Pixels, SynthesisRunner, fingerprint, moved
from dpdd.common.synthesis.statistics import Statistics

PICTURE_WEIGHT = 5.0
"""Of the small picture's moments beside the features', as in SPS."""
RANGE_WEIGHT = 10.0
"""Of pixels outside [0, 1]: kernels see them clamped, and this brings them back."""


def synthesise(
    statistics: Sequence[Statistics], method: MethodSettings, settings: MomentsSettings, run: RunDescription
) -> LabelledSet:
    """The support set, with as many images of every class, and the teacher in the releases.

    Where class priors are declared, images are made with a teacher for equal ones, as there are as many of every class.
    """
    runner, classes = run.runner or SynthesisRunner(), len(run.classes)
    task = SupportSetTask(statistics, with_backbone(method, run.shape), settings, run.public)
    (pixels,) = runner.make(task, [0], run.progress)
    soft = task.solved(pixels).numpy() if settings.labels == "solved" else None
    labels = np.arange(classes).repeat(run.images_per_class)
    return LabelledSet(pixels, labels, run.classes, soft, task.released.declared)


@dataclass(frozen=True, eq=False)
class SupportSetTask:
    """What the set is made from, in this process or in another, which works out anew what follows from it."""

    statistics: Sequence[Statistics]
    method: MethodSettings
    settings: MomentsSettings
    run: RunDescription

    def __getstate__(self) -> dict[str, object]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def steps(self) -> int:
        """Of the one batch."""
        return self.settings.steps

    @property
    def labels(self) -> Tensor:
        """Of the images; where labels are solved for, the classes that images start from."""
        return torch.arange(len(self.run.classes)).repeat_interleave(self.run.images_per_class)

    @cached_property
    def released(self) -> ReleasedClassifier:
        """The classifier that the statistics contain."""
        return ReleasedClassifier(self.statistics, self.method, self.run, self.settings.average_last_stages)

    @cached_property
    def goal(self) -> Goal:
        """What the set's classifier should be."""
        moments = self.released.moments
        values, _, positive = shrunk(moments)
        if self.settings.target == "ridge":
            wanted = ridge(moments)[0]
        else:
            assert self.released.teacher is not None
            wanted = torch.from_numpy(self.released.teacher.weights).double()
        goal = Goal.of(moments.second, wanted, float((positive - values.clamp_min(0.0)).mean()))
        return Goal(goal.root.float(), goal.wanted.float())

    def fingerprint(self, device: str) -> str:
        """Of everything that decides the set."""
        facts = {
            **self.released.facts,
            "settings": self.settings.model_dump(mode="json"),
            "images per class": self.run.images_per_class,
            "device": device,
        }
        return fingerprint(type(self), facts, self.released.arrays)

    def make(self, number: int, device: torch.device) -> Iterator[ImagePyramid]:
        """The pyramid of all images, after each step."""
        generator = torch.Generator().manual_seed(subseed(self.run.public_seed, f"kip support set {number}"))
        pyramid = ImagePyramid(len(self.labels), self.run.image_shape, generator, device=device)
        embedding, network = self._features
        moment_loss = MomentLoss.of(self.released.moments, embedding)
        if embedding.side:
            pyramid.start_from(embedding.pictures(moment_loss.draw(self.labels, generator)))
        parts = (self.goal, moment_loss, network, self.labels)
        if device.type != "cpu":
            parts = moved(parts, device)
        return _optimise(pyramid, embedding, *parts, self.settings)

    def preview(self, batches: Sequence[Pixels]) -> Image.Image:
        """A grid with a row per class."""
        return LabelledSet(batches[0], self.labels.numpy(), self.run.classes).preview(per_class=10)

    @torch.no_grad()
    def solved(self, pixels: Pixels) -> Tensor:
        """The labels with which these images are best."""
        embedding, network = self._features
        parts = [part.float() / 255.0 for part in torch.from_numpy(pixels).split(500)]
        features = torch.cat([embedding.of(network, part, network.features(part)) for part in parts])
        return self.goal.labels(features, self.settings.ridge)

    @property
    def _features(self) -> tuple[ImageEmbedding, FeatureNetwork]:
        embedding = self.released.embedding
        assert embedding is not None  # the method's settings insist on one
        return embedding, backbone(self.method.backbone).network


def _optimise(
    pyramid: ImagePyramid,
    embedding: ImageEmbedding,
    goal: Goal,
    moment_loss: MomentLoss,
    network: FeatureNetwork,
    labels: Tensor,
    settings: MomentsSettings,
) -> Iterator[ImagePyramid]:
    targets = centred(labels, len(goal.wanted))
    optimiser = torch.optim.Adam(pyramid.levels, lr=settings.learning_rate, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, settings.steps)
    for _ in range(settings.steps):
        images = pyramid.images()
        seen = images.clamp(0.0, 1.0)
        features = embedding.of(network, seen, network.features(seen))
        if settings.labels == "solved":  # at their best the loss is flat in them, so this gradient is the right one
            targets = centred(goal.labels(features.detach(), settings.ridge), targets.shape[1])
        loss = goal.loss(linear_weights(features, targets, settings.ridge))
        if settings.moment_weight:
            of_features, of_pictures = moment_loss.losses(features, labels)
            loss = loss + settings.moment_weight * (of_features + PICTURE_WEIGHT * of_pictures)
        loss = loss + RANGE_WEIGHT * outside(images) + settings.smoothness * roughness(images)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        schedule.step()
        yield pyramid
