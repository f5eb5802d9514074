"""SPS (Summarize, Privatize, Synthesize): the public half.

Released in the first stage: class sums and second moment of every image's embedding (`ImageEmbedding`), moments of
projected activations of a public backbone over all records and over each class or group of classes (SPS+), and class
counts, all in one clipped vector with one noise (`FeatureStatistics`). In later stages (SPS+): the same moments,
centred on those of a synthetic set, and the gradient of the classifier so far. Synthesis optimises images until the
Gaussians of their own statistics match the released ones.

Where we differ from the paper: counts are released, not public; activations are taken before BatchNorm and
standardised with its public statistics; the weight of the class part counts how many groups a record sits in; the
jitter has a floor; the statistics contain a classifier (`teacher`), which gives labels at no further cost; the backbone
may be a fixed scattering transform, so that no public data is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional

from dpdd.common.config import Settings
from dpdd.common.errors import ConfigError, IntegrityError
from dpdd.common.methods.sps.feature_statistics import (
    THUMBNAIL,
    FeatureStatistics,
    Scope,
    Statistic,
    make_groups,
    unpack,
)
from dpdd.common.methods.sps.gaussian_fit import Gaussians, divergence, fit
from dpdd.common.methods.sps.moment_loss import MomentLoss
from dpdd.common.models.backbone import Backbone
from dpdd.common.models.backbone import load as load_backbone
from dpdd.common.privacy.clipping import Layout
from dpdd.common.progress import Progress, silent
from dpdd.common.randomness import subseed
from dpdd.common.synthesis import teacher
from dpdd.common.synthesis.image_embedding import ImageEmbedding
from dpdd.common.synthesis.image_pyramid import ImagePyramid, outside, random_affine, roughness
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.runner import Pixels, SynthesisRunner, fingerprint, moved
from dpdd.common.synthesis.statistics import Statistics
from dpdd.common.synthesis.teacher import Teacher
from dpdd.common.wire.request import ReleaseRequest

Shape = tuple[int, int, int]
Goal = tuple[FeatureStatistics, dict[str, Gaussians]]
"""A spec, and what its rows should say of a batch."""


class MethodSettings(Settings):
    """What is released; part of the request.

    `features` and `picture` make the embedding (0 and 0: none). `global_dimensions`, `class_layers` and `thumbnail`
    make feature statistics, as in the paper; `row_share` is their part of a record's squared norm beside the embedding.
    `stages` are reserved together; the first has `first_share` of the budget (in 1/σ²), the others share the rest.
    With `more_backbones` the stages take turns: rows of the second stage look at the first of these, and so on, and
    images are made to please all; the embedding stays with `backbone`. Hashes are filled in before silos are asked.
    """

    backbone: str = "scatter28"
    features: Annotated[int, Field(ge=0, le=2048)] = 512
    picture: Annotated[int, Field(ge=0, le=16)] = 7
    global_dimensions: Annotated[int, Field(ge=0, le=1024)] = 0
    class_dimensions: Annotated[int, Field(ge=1, le=1024)] = 48
    class_layers: Annotated[int, Field(ge=0)] = 0
    thumbnail: Annotated[int, Field(ge=0, le=16)] = 0
    row_share: Annotated[float, Field(gt=0.0, lt=0.9)] = 0.4
    clip: Annotated[float, Field(gt=0.0, le=1.0)] = 0.2
    count_weight: Annotated[float, Field(gt=0.0, le=0.3)] = 0.1
    groups: Annotated[int, Field(ge=0, le=10_000)] = 0
    classes_per_group: Annotated[int, Field(ge=0)] = 0
    group_seed: Annotated[int, Field(ge=0)] = 0
    stages: Annotated[int, Field(ge=1, le=50)] = 1
    first_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.3
    more_backbones: tuple[str, ...] = ()
    more_sha256: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _both(self) -> MethodSettings:
        if bool(self.groups) != bool(self.classes_per_group):
            raise ValueError("groups and classes_per_group belong together: give both, or neither")
        if not (self.features or self.picture or self.global_dimensions or self.class_layers or self.thumbnail):
            raise ValueError("nothing is released: ask for features, a picture, a thumbnail, or some layers")
        if self.more_backbones and not (self.global_dimensions or self.class_layers):
            raise ValueError("more_backbones are for rows of layers: ask for global_dimensions or class_layers")
        if len(self.more_backbones) >= self.stages:
            raise ValueError(f"{1 + len(self.more_backbones)} backbones need as many stages, not {self.stages}")
        if self.more_sha256 and len(self.more_sha256) != len(self.more_backbones):
            raise ValueError("more_sha256 is filled in by the coordinator: leave it out")
        return self

    @property
    def backbones(self) -> tuple[tuple[str, str], ...]:
        """All of them by name, the stages' in turn, with the hash that each must have (empty: any)."""
        hashes = self.more_sha256 or ("",) * len(self.more_backbones)
        return (self.backbone, ""), *zip(self.more_backbones, hashes, strict=True)


def resolve(settings: MethodSettings, **_facts: object) -> MethodSettings:
    """Settings that pin `more_backbones` by their hashes, so that all sides mean the same files."""
    hashes = tuple(_backbone(name, "").card.sha256 for name in settings.more_backbones)
    return settings.model_copy(update={"more_sha256": hashes})


class SynthesisSettings(Settings):
    """How images are made; may change without asking the silos again.

    With `ema` the rows' statistics are averaged over steps, for small batches. `redraws` are extra batches, made while
    there are images that the teacher takes for another class, to replace those. `average_last_stages` is how many of
    the last Newton steps the teacher averages: 1 where classes are easy to tell apart, more where they are hard.
    """

    steps: Annotated[int, Field(ge=1, le=100_000)] = 120
    batch_per_class: Annotated[int, Field(ge=2, le=10_000)] = 20
    learning_rate: Annotated[float, Field(gt=0.0)] = 0.02
    class_weight: Annotated[float, Field(ge=0.0)] = 10.0
    embedding_weight: Annotated[float, Field(ge=0.0)] = 1.0
    picture_weight: Annotated[float, Field(ge=0.0)] = 5.0
    teacher_weight: Annotated[float, Field(ge=0.0)] = 0.05
    smoothness: Annotated[float, Field(ge=0.0)] = 0.02
    range_weight: Annotated[float, Field(ge=0.0)] = 10.0
    eigenvalue_jitter: Annotated[float, Field(ge=0.0)] = 2.0
    augmentation_strength: Annotated[float, Field(ge=0.0, le=0.5)] = 0.05
    flips: bool = False
    ema: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    redraws: Annotated[int, Field(ge=0, le=100)] = 1
    soft_labels: bool = True
    average_last_stages: Annotated[int, Field(ge=1, le=50)] = 1


@lru_cache(maxsize=16)
def _backbone(name: str, sha256: str) -> Backbone:
    return load_backbone(name, sha256 or None)


def statistics_for(settings: MethodSettings, request: ReleaseRequest) -> FeatureStatistics:
    """The spec of a request: both sides build the same."""
    if len(settings.more_sha256) != len(settings.more_backbones):
        raise ConfigError("the request names more_backbones without their hashes, so it might mean any files")
    try:
        first = _backbone(settings.backbone, request.backbone_sha256.hex())
        chosen = _backbone(*_turn(settings, request.stage)) if _turn(settings, request.stage)[1] else first
    except IntegrityError as error:
        raise ConfigError(str(error)) from None
    return feature_statistics(
        settings, chosen, len(request.classes), request.shape, request.public_seed, request.stage, first
    )


def _turn(settings: MethodSettings, stage: int) -> tuple[str, str]:
    """The backbone whose turn it is."""
    return settings.backbones[stage % len(settings.backbones)]


def _spec(settings: MethodSettings, classes: int, shape: tuple[int, ...], seed: int, stage: int) -> FeatureStatistics:
    """The statistics spec of a stage, on the backbones as they are here."""
    first = _backbone(settings.backbone, "")
    return feature_statistics(settings, _backbone(*_turn(settings, stage)), classes, shape, seed, stage, first)


def feature_statistics(
    settings: MethodSettings,
    backbone: Backbone,
    classes: int,
    shape: tuple[int, ...],
    seed: int,
    stage: int = 0,
    first: Backbone | None = None,
) -> FeatureStatistics:
    """The statistics spec of a stage: rows on `backbone`, the embedding on `first` (left out: the same)."""
    network, first = backbone.network, first or backbone
    layers, channels = len(network.layer_channels), backbone.card.architecture.channels
    if shape[:1] != (channels,) or len(shape) != 3:
        raise ConfigError(
            f"backbone {backbone.card.name} is for images of {channels} channels, not for records of shape {shape}"
        )
    if settings.features > first.network.whitening.most:
        raise ConfigError(
            f"backbone {first.card.name} has {first.network.whitening.most} features, not {settings.features}"
        )
    scope: Scope = "group" if settings.groups else "class"
    rows = [
        Statistic(layer, settings.global_dimensions, "global") for layer in range(layers) if settings.global_dimensions
    ]
    rows += [
        Statistic(layer, settings.class_dimensions, scope)
        for layer in range(max(layers - settings.class_layers, 0), layers)
    ]
    if settings.thumbnail:
        rows.append(Statistic(THUMBNAIL, settings.thumbnail**2, scope))
    groups = None
    if settings.groups:
        groups = make_groups(classes, settings.groups, settings.classes_per_group, settings.group_seed)
    embedding = None
    if settings.features or settings.picture:
        embedding = ImageEmbedding(settings.features, settings.picture, channels)
    clip, count, share = settings.clip, settings.count_weight, settings.row_share
    turn, other = stage % len(settings.backbones), None if first is backbone else first.network
    return FeatureStatistics(
        tuple(rows), network, classes, seed, clip, count, groups, embedding, share, stage, turn, other
    )


def stages(settings: MethodSettings) -> int:
    """How many releases belong together."""
    return settings.stages


def layout(settings: MethodSettings, classes: int, stage: int = 0, shape: Sequence[int] = ()) -> Layout:
    """The released sums of a stage."""
    channels = _backbone(settings.backbone, "").card.architecture.channels
    return _spec(settings, classes, (channels, 1, 1), 0, stage).layout


def stage_input_shapes(spec: FeatureStatistics) -> dict[str, tuple[int, ...]]:
    """What a request of a later stage has to centre on."""
    shapes: dict[str, tuple[int, ...]] = {}
    if spec.embedding is not None:
        shapes["teacher"] = (spec.classes, spec.embedding.dimensions)
    if spec.statistics:
        shapes["rows"] = (spec.classes, sum(statistic.width for statistic in spec.statistics))
    return shapes


def stage_input(
    statistics: Sequence[Statistics],
    settings: MethodSettings,
    *,
    classes: tuple[str, ...],
    shape: Shape,
    public_seed: int,
) -> dict[str, NDArray]:
    """What the next stage centres on: the classifier so far, and the rows of a small synthetic set."""
    specs = _specs(statistics, settings, classes, shape, public_seed)
    found: dict[str, NDArray] = {}
    if specs[0].embedding is not None:
        found["teacher"] = teacher.learn(statistics, specs)
    if specs[0].statistics:
        sketch = SynthesisSettings(steps=60, batch_per_class=8)
        made = synthesise(
            statistics, settings, sketch, classes=classes, shape=shape, images_per_class=8, public_seed=public_seed
        )
        spec = _spec(settings, len(classes), shape, public_seed, len(statistics))
        with torch.inference_mode():
            vectors, _ = spec.measure(torch.from_numpy(made.images).float() / 255.0)
        plain = torch.cat([vectors[:, spec.columns[r.name]] / spec.weights[r.name] for r in spec.statistics], 1)
        found["rows"] = plain.unflatten(0, (len(classes), -1)).mean(1).numpy()
    return found


def joint_teacher(
    firsts: Sequence[Statistics], settings: MethodSettings, tasks: Sequence[tuple[str, ...]], shape: Shape
) -> Teacher | None:
    """One classifier for the classes of several tasks, each asked with these settings, from their first stages.

    Ridge regression needs class sums and the second moment over everybody, and both add up over tasks, so this is
    exactly the ridge that one release over all classes would give, but for the noise; it is post-processing. (Counts
    that were weighed by precision are effective ones: a class with less noise then weighs more, as within a task.)

    Later stages are left out: they hold gradients of a softmax over one task's own classes, at records of those classes
    only, so a step along them need not be one down in the joint loss.
    """
    backbone = _backbone(settings.backbone, "")
    specs = [feature_statistics(settings, backbone, len(classes), shape, 0) for classes in tasks]
    embedding = specs[0].embedding
    if embedding is None:
        return None
    parts = [teacher.moments_of(first, spec) for first, spec in zip(firsts, specs, strict=True)]
    weights, _ = teacher.ridge(teacher.joined(parts))
    return Teacher(weights.float().numpy(), settings.backbone, backbone.card.sha256, embedding)


def _specs(
    statistics: Sequence[Statistics], settings: MethodSettings, classes: tuple[str, ...], shape: Shape, seed: int
) -> list[FeatureStatistics]:
    return [_spec(settings, len(classes), shape, seed, stage) for stage in range(len(statistics))]


def counts_of(statistics: Statistics, spec: FeatureStatistics) -> tuple[Tensor, Tensor]:
    """Noisy class counts (floored at 1), and which of them stand out of the noise."""
    counts = torch.from_numpy(statistics.sums["count"][:, 0] / spec.count_weight)
    return counts.clamp_min(1.0), counts > 2.0 * statistics.noise / spec.count_weight


def targets(
    statistics: Sequence[Statistics],
    specs: Sequence[FeatureStatistics],
    gamma: float,
    look: FeatureStatistics | None = None,
) -> dict[str, Gaussians]:
    """The released Gaussians of every row of `look` (left out: the first spec).

    A row's mean is over all stages that looked at the same thing, each weighed by its precision.
    """
    found, look = {}, look or specs[0]
    for statistic in look.statistics:
        means, weights = [], []
        for stage, spec in zip(statistics, specs, strict=True):
            if statistic.place != THUMBNAIL and spec.turn != look.turn:
                continue
            counts, _ = counts_of(stage, spec)
            member = membership(statistic, spec).double()
            sums = torch.from_numpy(stage.sums[statistic.name]) / spec.weights[statistic.name]
            if "rows" in stage.stage_input:
                place = spec.columns[statistic.name]
                sums = sums + member @ (
                    counts[:, None] * torch.from_numpy(stage.stage_input["rows"])[:, place].double()
                )
            means.append(sums / (member @ counts)[:, None])
            weights.append((spec.weights[statistic.name] / stage.noise) ** 2 if stage.noise else 1.0)
        shares = torch.tensor(weights, dtype=torch.float64) / sum(weights)
        average = torch.einsum("s,sij->ij", shares, torch.stack(means))
        seen = (membership(statistic, look).double() @ counts_of(statistics[0], specs[0])[1].double()) > 0
        found[statistic.name] = _single(fit(*unpack(average, statistic.dimensions), seen, gamma))
    return found


def membership(statistic: Statistic, spec: FeatureStatistics) -> Tensor:
    """Which classes (columns) are added to which rows of the sum: 0 or 1."""
    segment = next(s for s in spec.layout.segments if s.name == statistic.name)
    member = torch.zeros(segment.rows, spec.classes)
    for label, rows in enumerate(segment.rows_of):
        member[list(rows), label] = 1.0
    return member


def _single(fitted: Gaussians) -> Gaussians:
    return Gaussians(fitted.means.float(), fitted.covariances.float(), fitted.jitters.float(), fitted.known)


def mismatch(
    vectors: Tensor, labels: Tensor, spec: FeatureStatistics, wanted: Mapping[str, Gaussians], class_weight: float
) -> Tensor:
    """The SPS objective (eq. 2): KL of released Gaussians to the batch's, global plus `class_weight` × class part."""
    one_hot = functional.one_hot(labels, spec.classes).to(vectors)
    loss = vectors.new_zeros(())
    for scope, weight in (("global", 1.0), ("some", class_weight)):
        parts = []
        for statistic in spec.statistics:
            if (statistic.scope == "global") == (scope == "global"):
                picked = membership(statistic, spec).to(vectors) @ one_hot.T
                share = picked / picked.sum(1, keepdim=True).clamp_min(1.0)
                moved = share @ (vectors[:, spec.columns[statistic.name]] / spec.weights[statistic.name])
                losses = divergence(wanted[statistic.name], *unpack(moved, statistic.dimensions))
                parts.append(losses.sum() / max(len(losses), 1))  # none where all classes are lost in the noise
        if parts and weight:
            loss = loss + weight * torch.stack(parts).mean()
    return loss


def synthesise(
    statistics: Sequence[Statistics],
    method: MethodSettings,
    settings: SynthesisSettings,
    *,
    classes: tuple[str, ...],
    shape: Shape,
    images_per_class: int,
    public_seed: int,
    runner: SynthesisRunner | None = None,
    progress: Progress = silent,
) -> LabelledSet:
    """Optimise batches of images until there are `images_per_class` of every class, and label them."""
    runner = runner or SynthesisRunner()
    per_class = max(2, min(settings.batch_per_class, images_per_class))
    batches = math.ceil(images_per_class / per_class)
    task = ImageTask(statistics, method, settings, classes, shape, public_seed, per_class)
    made = [part.reshape(len(classes), per_class, *shape) for part in runner.make(task, range(batches), progress)]
    pixels = np.concatenate(made, axis=1)[:, :images_per_class].reshape(-1, *shape)
    labels = np.arange(len(classes)).repeat(images_per_class)
    guide = task.guide
    if guide is None:
        return LabelledSet(pixels, labels, classes)
    soft = _chances(guide, pixels, runner.kind)
    known = counts_of(statistics[0], task.specs[0])[1].numpy()
    for number in range(batches, batches + settings.redraws):
        off = np.flatnonzero((soft.argmax(1) != labels) & known[labels])
        if not len(off):
            break
        (spare,) = runner.make(task, [number], progress, f"redrawing {len(off)} off-class images")
        chances = _chances(guide, spare, runner.kind)
        for label in np.unique(labels[off]):
            good = np.flatnonzero((task.labels.numpy() == label) & (chances.argmax(1) == label))
            places = off[labels[off] == label][: len(good)]
            pixels[places], soft[places] = spare[good[: len(places)]], chances[good[: len(places)]]
    return LabelledSet(pixels, labels, classes, soft if settings.soft_labels else None, guide)


def _chances(guide: Teacher, pixels: Pixels, device: str) -> NDArray[np.float32]:
    """What the teacher takes the images for."""
    return guide.probabilities(torch.from_numpy(pixels).to(device).float() / 255.0).cpu().numpy()


@dataclass(frozen=True, eq=False)
class ImageTask:
    """What batches are made from, in this process or in another, which works out anew what follows from it."""

    statistics: Sequence[Statistics]
    method: MethodSettings
    settings: SynthesisSettings
    classes: tuple[str, ...]
    shape: Shape
    public_seed: int
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
        return torch.arange(len(self.classes)).repeat_interleave(self.per_class)

    @cached_property
    def specs(self) -> list[FeatureStatistics]:
        """Of the stages."""
        return _specs(self.statistics, self.method, self.classes, self.shape, self.public_seed)

    @cached_property
    def guide(self) -> Teacher | None:
        """The classifier that the statistics contain, if they do."""
        embedding = self.specs[0].embedding
        if embedding is None:
            return None
        sha256 = _backbone(self.method.backbone, "").card.sha256
        return Teacher(
            teacher.learn(self.statistics, self.specs, self.settings.average_last_stages),
            self.method.backbone,
            sha256,
            embedding,
        )

    @cached_property
    def _goals(self) -> tuple[tuple[Goal, ...], MomentLoss | None]:
        looks = {spec.turn: spec for spec in reversed(self.specs)}  # the first spec of each backbone
        goals = tuple(
            (look, targets(self.statistics, self.specs, self.settings.eigenvalue_jitter, look))
            for look in reversed(looks.values())
        )
        embedding = self.specs[0].embedding
        if embedding is None:
            return goals, None
        return goals, MomentLoss.of(teacher.moments_of(self.statistics[0], self.specs[0]), embedding)

    def fingerprint(self, device: str) -> str:
        """Of everything that decides a batch."""
        facts = {
            "method": self.method.model_dump(mode="json"),
            "settings": self.settings.model_dump(mode="json", exclude={"soft_labels", "redraws"}),
            "backbones": [_backbone(*named).card.sha256 for named in self.method.backbones],
            "classes": len(self.classes),
            "shape": self.shape,
            "seed": self.public_seed,
            "per class": self.per_class,
            "noise": [stage.noise for stage in self.statistics],
            "device": device,
        }
        arrays = {
            f"{number} {kind} {name}": array
            for number, stage in enumerate(self.statistics)
            for kind, group in (("sum", stage.sums), ("centre", stage.stage_input))
            for name, array in group.items()
        }
        return fingerprint(facts, arrays)

    def make(self, number: int, device: torch.device) -> Iterator[ImagePyramid]:
        """The pyramid of batch `number`, after each step."""
        generator = torch.Generator().manual_seed(subseed(self.public_seed, f"sps batch {number}"))
        looks, moment_loss = self._goals
        pyramid = ImagePyramid(len(self.labels), self.shape, generator, device=device)
        if moment_loss is not None and moment_loss.embedding.side:
            pyramid.start_from(moment_loss.embedding.pictures(moment_loss.draw(self.labels, generator)))
        weights = None if self.guide is None else torch.from_numpy(self.guide.weights)
        goals = (self.labels, looks, moment_loss, weights)
        if device.type != "cpu":
            goals = moved(goals, device)
        return _optimise(pyramid, *goals, self.settings, generator)

    def preview(self, batches: Sequence[Pixels]) -> Image.Image:
        """A grid with a row per class, from as many batches as have a place in it."""
        shown = np.concatenate(batches[: math.ceil(10 / self.per_class)])
        labels = self.labels.repeat(len(shown) // len(self.labels)).numpy()
        return LabelledSet(shown, labels, self.classes).preview(per_class=10)


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
        # The augmentation_strength starts small: shapes form first, then they learn to survive it.
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
