"""SPS: from noisy statistics to labelled images.

Batches of images are optimised until the Gaussians of their own feature statistics, and the moments of their
embeddings, match the released ones (eq. 2 and the moment loss). The classifier that the releases contain labels them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional

from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.sps import classifier
from dpdd.common.methods.sps.calibration import calibrated
from dpdd.common.methods.sps.feature_statistics import FeatureStatistics
from dpdd.common.methods.sps.gaussian_fit import Gaussians
from dpdd.common.methods.sps.moment_loss import MomentLoss
from dpdd.common.methods.sps.released_classifier import ReleasedClassifier, teacher_with
from dpdd.common.methods.sps.settings import MethodSettings, SynthesisSettings
from dpdd.common.methods.sps.specification import specification, specifications, with_backbone
from dpdd.common.methods.sps.targets import counts_of, mismatch, targets
from dpdd.common.randomness import subseed
from dpdd.common.synthesis.image_pyramid import ImagePyramid, outside, random_affine, roughness
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.priors import ClassCounts, shares
from dpdd.common.synthesis.runner import Pixels, SynthesisRunner, fingerprint, moved
from dpdd.common.synthesis.statistics import Statistics
from dpdd.common.synthesis.teacher import Teacher

Goal = tuple[FeatureStatistics, dict[str, Gaussians]]
"""Feature statistics, and what they should be over a batch."""


def stage_input(
    statistics: Sequence[Statistics], settings: MethodSettings, run: RunDescription
) -> dict[str, NDArray[np.float32]]:
    """What the next stage is asked with: the classifier so far, and the feature statistics of a small synthetic set."""
    specs = specifications(settings, run, len(statistics))
    arrays: dict[str, NDArray[np.float32]] = {}
    if specs[0].embedding is not None:
        arrays["teacher"] = classifier.learn(statistics, specs)
    if specs[0].statistics:
        sketch = SynthesisSettings(steps=60, batch_per_class=8)
        small = synthesise(statistics, settings, sketch, replace(run.public, images_per_class=8))
        spec = specification(settings, run, len(statistics))
        with torch.inference_mode():
            vectors, _ = spec.measure(torch.from_numpy(small.images).float() / 255.0)
        plain = torch.cat([vectors[:, spec.columns[s.name]] / spec.weights[s.name] for s in spec.statistics], 1)
        arrays["rows"] = plain.unflatten(0, (len(run.classes), -1)).mean(1).numpy()
    return arrays


def joint_teacher(
    firsts: Sequence[Statistics], settings: MethodSettings, tasks: Sequence[tuple[str, ...]], run: RunDescription
) -> Teacher | None:
    """One classifier for the classes of several tasks, each asked with these settings, from their first stages.

    Ridge regression needs class sums and the second moment over everybody, and both add up over tasks, so this is
    exactly the ridge that one release over all classes would give, but for the noise; it is post-processing. (Counts
    that were weighed by precision are effective ones: a class with less noise then weighs more, as within a task.)

    Later stages are left out: they hold gradients of a softmax over one task's own classes, at records of those classes
    only, so a step along them need not be one down in the joint loss.
    """
    settings = with_backbone(settings, run.shape)
    specs = [specification(settings, replace(run, classes=classes), 0) for classes in tasks]
    parts = [classifier.moments_of(first, spec) for first, spec in zip(firsts, specs, strict=True) if spec.embedding]
    if not parts:
        return None
    moments = classifier.joined(parts)
    weights = classifier.ridge(moments)[0].float().numpy()
    if run.priors is not None:
        names = [name for classes in tasks for name in classes]
        counts = ClassCounts(moments.counts.numpy(), moments.known.numpy())
        weights = calibrated(weights, moments, shares(run.priors, names, counts), _constant(specs[0]))
    return teacher_with(weights, settings, specs[0])


def synthesise(
    statistics: Sequence[Statistics], method: MethodSettings, settings: SynthesisSettings, run: RunDescription
) -> LabelledSet:
    """Optimise batches of images until there are `images_per_class` of every class, and label them.

    Where class priors are declared, images are made with a teacher for equal ones, as there are as many of every class,
    and labelled by one for those declared. So other priors need no other images.
    """
    runner, images_per_class, shape = run.runner or SynthesisRunner(), run.images_per_class, run.image_shape
    classes = len(run.classes)
    per_class = max(2, min(settings.batch_per_class, images_per_class))
    batches = math.ceil(images_per_class / per_class)
    task = ImageTask(statistics, with_backbone(method, run.shape), settings, run.public, per_class)
    parts = [part.reshape(classes, per_class, *shape) for part in runner.make(task, range(batches), run.progress)]
    pixels = np.concatenate(parts, axis=1)[:, :images_per_class].reshape(-1, *shape)
    labels = np.arange(classes).repeat(images_per_class)
    teacher = task.released.teacher
    if teacher is None:
        return LabelledSet(pixels, labels, run.classes)
    soft = _probabilities(teacher, pixels, runner.kind)
    known = counts_of(statistics[0], task.released.specs[0])[1].numpy()
    for number in range(batches, batches + settings.redraws):
        off = np.flatnonzero((soft.argmax(1) != labels) & known[labels])
        if not len(off):
            break
        (spare,) = runner.make(task, [number], run.progress, f"redrawing {len(off)} off-class images")
        chances = _probabilities(teacher, spare, runner.kind)
        for label in np.unique(labels[off]):
            good = np.flatnonzero((task.labels.numpy() == label) & (chances.argmax(1) == label))
            places = off[labels[off] == label][: len(good)]
            pixels[places], soft[places] = spare[good[: len(places)]], chances[good[: len(places)]]
    if run.priors is not None:
        declared = task.released.declared
        assert declared is not None
        teacher, soft = declared, _probabilities(declared, pixels, runner.kind)
    return LabelledSet(pixels, labels, run.classes, soft if settings.soft_labels else None, teacher)


def _constant(spec: FeatureStatistics) -> float:
    """The last coordinate of embeddings."""
    assert spec.embedding is not None
    return spec.embedding.constant


def _probabilities(teacher: Teacher, pixels: Pixels, device: str) -> NDArray[np.float32]:
    """The teacher's labels for the images."""
    return teacher.probabilities(torch.from_numpy(pixels).to(device).float() / 255.0).cpu().numpy()


@dataclass(frozen=True, eq=False)
class ImageTask:
    """What batches are made from, in this process or in another, which works out anew what follows from it."""

    statistics: Sequence[Statistics]
    method: MethodSettings
    settings: SynthesisSettings
    run: RunDescription
    per_class: int

    def __getstate__(self) -> dict[str, object]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def steps(self) -> int:
        """Of one batch."""
        return self.settings.steps

    @property
    def labels(self) -> Tensor:
        """Of the images of every batch."""
        return torch.arange(len(self.run.classes)).repeat_interleave(self.per_class)

    @cached_property
    def released(self) -> ReleasedClassifier:
        """The classifier that the statistics contain, if they do, and the feature statistics of the stages."""
        return ReleasedClassifier(self.statistics, self.method, self.run, self.settings.average_last_stages)

    @cached_property
    def goals(self) -> tuple[tuple[Goal, ...], MomentLoss | None]:
        """What a batch is compared with: through each backbone, and in the embedding."""
        specs = self.released.specs
        looks = {spec.turn: spec for spec in reversed(specs)}  # the first of each backbone
        goals = tuple(
            (look, targets(self.statistics, specs, self.settings.eigenvalue_jitter, look))
            for look in reversed(looks.values())
        )
        embedding = self.released.embedding
        return goals, None if embedding is None else MomentLoss.of(self.released.moments, embedding)

    def fingerprint(self, device: str) -> str:
        """Of everything that decides a batch."""
        facts = {
            **self.released.facts,
            "settings": self.settings.model_dump(mode="json", exclude={"soft_labels", "redraws"}),
            "per class": self.per_class,
            "device": device,
        }
        return fingerprint(type(self), facts, self.released.arrays)

    def make(self, number: int, device: torch.device) -> Iterator[ImagePyramid]:
        """The pyramid of batch `number`, after each step."""
        generator = torch.Generator().manual_seed(subseed(self.run.public_seed, f"sps batch {number}"))
        looks, moment_loss = self.goals
        pyramid = ImagePyramid(len(self.labels), self.run.image_shape, generator, device=device)
        if moment_loss is not None and moment_loss.embedding.side:
            pyramid.start_from(moment_loss.embedding.pictures(moment_loss.draw(self.labels, generator)))
        teacher = self.released.teacher
        weights = None if teacher is None else torch.from_numpy(teacher.weights)
        goals = (self.labels, looks, moment_loss, weights)
        if device.type != "cpu":
            goals = moved(goals, device)
        return _optimise(pyramid, *goals, self.settings, generator)

    def preview(self, batches: Sequence[Pixels]) -> Image.Image:
        """A grid with a row per class, from as many batches as have a place in it."""
        shown = np.concatenate(batches[: math.ceil(10 / self.per_class)])
        labels = self.labels.repeat(len(shown) // len(self.labels)).numpy()
        return LabelledSet(shown, labels, self.run.classes).preview(per_class=10)


def _optimise(
    pyramid: ImagePyramid,
    labels: Tensor,
    looks: Sequence[Goal],
    moment_loss: MomentLoss | None,
    weights: Tensor | None,
    settings: SynthesisSettings,
    generator: torch.Generator,
) -> Iterator[ImagePyramid]:
    optimiser = torch.optim.Adam(pyramid.levels, lr=settings.learning_rate, betas=(0.5, 0.9))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, settings.steps)
    averages: dict[int, Tensor] = {}
    for step in range(settings.steps):
        images = pyramid.images()
        # Augmentation starts weak: shapes form first, then they learn to survive it.
        strength = settings.augmentation_strength * min(1.0, 2.0 * step / settings.steps)
        seen = random_affine(images, strength, settings.flips, generator)
        loss = images.new_zeros(())
        for number, (spec, wanted) in enumerate(looks):
            vectors, embeddings = spec.measure(seen, embed=number == 0)
            if settings.ema:
                # Moments are linear in an image's vector, and it keeps its label: averaging vectors averages moments.
                average = averages.get(number, vectors).lerp(vectors, 1.0 - settings.ema).detach()
                averages[number] = average
                vectors = average + vectors - vectors.detach()  # the average's value, today's gradient
            loss = loss + mismatch(vectors, labels, spec, wanted, settings.class_weight) / len(looks)
            if moment_loss is not None and embeddings is not None and weights is not None:
                losses = moment_loss.losses(embeddings, labels)
                loss = loss + settings.embedding_weight * losses[0] + settings.picture_weight * losses[1]
                loss = loss + settings.teacher_weight * functional.cross_entropy(embeddings @ weights.T, labels)
        loss = loss + settings.smoothness * roughness(images) + settings.range_weight * outside(images)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        schedule.step()
        yield pyramid
