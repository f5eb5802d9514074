"""SPS (Summarize, Privatize, Synthesize): the public half.

Released: moments of projected activations of a public backbone, over all records and over each class (or over groups of
classes, SPS+), a position-keeping thumbnail, and class counts, all in one clipped vector with one noise
(`summary.Summary`). Synthesis optimises images until the Gaussians of their own statistics match the released ones.

Where we differ from the paper: counts are released, not public; activations are taken before BatchNorm and
standardised with its public statistics; the weight of the class part counts how many groups a record sits in; the
jitter has a floor; the statistics contain a classifier (`teacher`), which gives soft labels at no further cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional

from dpdd.common.config import Settings
from dpdd.common.errors import ConfigError, IntegrityError
from dpdd.common.models.backbone import Backbone
from dpdd.common.models.backbone import load as load_backbone
from dpdd.common.privacy.clipping import Layout
from dpdd.common.progress import Progress, silent
from dpdd.common.randomness import subseed
from dpdd.common.synthesis import teacher
from dpdd.common.synthesis.canvas import Canvas, jostle, outside, roughness
from dpdd.common.synthesis.dataset import SyntheticSet
from dpdd.common.synthesis.gaussian_fit import Gaussians, divergence, fit
from dpdd.common.synthesis.statistics import Statistics
from dpdd.common.synthesis.summary import FEATURES, THUMBNAIL, Row, Scope, Summary, make_groups, unpack
from dpdd.common.wire.request import ReleaseRequest

Shape = tuple[int, int, int]


class MethodSettings(Settings):
    """What is released; part of the request."""

    backbone: str = "gray28"
    global_dimensions: Annotated[int, Field(ge=0, le=1024)] = 48
    class_dimensions: Annotated[int, Field(ge=1, le=1024)] = 48
    class_layers: Annotated[int, Field(ge=1)] = 3
    thumbnail: Annotated[int, Field(ge=0, le=16)] = 7
    features: Annotated[int, Field(ge=0, le=1024)] = 128
    features_weight: Annotated[float, Field(gt=0.0, le=100.0)] = 1.5
    clip: Annotated[float, Field(gt=0.0, le=1.0)] = 0.2
    count_weight: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    groups: Annotated[int, Field(ge=0, le=10_000)] = 0
    classes_per_group: Annotated[int, Field(ge=0)] = 0
    group_seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _both(self) -> MethodSettings:
        if bool(self.groups) != bool(self.classes_per_group):
            raise ValueError("groups and classes_per_group belong together: give both, or neither")
        return self


class SynthesisSettings(Settings):
    """How images are made; may change without asking the silos again."""

    steps: Annotated[int, Field(ge=1, le=100_000)] = 150
    batch_per_class: Annotated[int, Field(ge=1, le=10_000)] = 20
    learning_rate: Annotated[float, Field(gt=0.0)] = 0.05
    class_weight: Annotated[float, Field(ge=0.0)] = 10.0
    smoothness: Annotated[float, Field(ge=0.0)] = 0.05
    range_weight: Annotated[float, Field(ge=0.0)] = 10.0
    eigenvalue_jitter: Annotated[float, Field(ge=0.0)] = 2.0
    teacher_weight: Annotated[float, Field(ge=0.0)] = 0.0
    jostling: Annotated[float, Field(ge=0.0, le=0.5)] = 0.07
    flips: bool = True
    soft_labels: bool = False


@lru_cache(maxsize=4)
def _backbone(name: str, sha256: str) -> Backbone:
    return load_backbone(name, sha256 or None)


def summary_for(settings: MethodSettings, request: ReleaseRequest) -> Summary:
    """The table of a request: both sides build the same."""
    try:
        backbone = _backbone(settings.backbone, request.backbone_sha256.hex())
    except IntegrityError as error:
        raise ConfigError(str(error)) from None
    return summary(settings, backbone, len(request.classes), request.shape, request.public_seed)


def summary(settings: MethodSettings, backbone: Backbone, classes: int, shape: tuple[int, ...], seed: int) -> Summary:
    """The statistics table on a backbone."""
    network = backbone.network
    layers = len(network.tap_channels)
    if shape[:1] != (backbone.card.architecture.channels,) or len(shape) != 3:
        raise ConfigError(
            f"backbone {backbone.card.name} is for images of {backbone.card.architecture.channels} channels, "
            f"not for records of shape {shape}"
        )
    scope: Scope = "group" if settings.groups else "class"
    rows = [Row(layer, settings.global_dimensions, "global") for layer in range(layers) if settings.global_dimensions]
    rows += [
        Row(layer, settings.class_dimensions, scope) for layer in range(max(layers - settings.class_layers, 0), layers)
    ]
    if settings.thumbnail:
        rows.append(Row(THUMBNAIL, settings.thumbnail**2, scope))
    if settings.features:
        rows.append(Row(FEATURES, settings.features, "global", weight=settings.features_weight))
        rows.append(Row(FEATURES, settings.features, "class", order=1, weight=3.0 * settings.features_weight))
    groups = None
    if settings.groups:
        groups = make_groups(classes, settings.groups, settings.classes_per_group, settings.group_seed)
    return Summary(tuple(rows), network, classes, seed, settings.clip, settings.count_weight, groups)


def layout(settings: MethodSettings, classes: int) -> Layout:
    """The released sums."""
    backbone = _backbone(settings.backbone, "")
    return summary(settings, backbone, classes, (backbone.card.architecture.channels, 1, 1), 0).layout


def counts_of(statistics: Statistics, table: Summary) -> tuple[Tensor, Tensor]:
    """Noisy class counts (floored at 1), and which of them stand out of the noise."""
    counts = torch.from_numpy(statistics.sums["count"][:, 0] / table.count_weight)
    return counts.clamp_min(1.0), counts > 2.0 * statistics.noise / table.count_weight


def targets(statistics: Statistics, table: Summary, gamma: float) -> dict[str, Gaussians]:
    """The released Gaussians of every row of order 2."""
    counts, known = counts_of(statistics, table)
    found = {}
    for row in table.rows:
        if row.order == 2:
            member = membership(row, table).double()
            total, seen = member @ counts, (member @ known.double()) > 0
            sums = torch.from_numpy(statistics.sums[row.name]) / table.weights[row.name]
            means, second = unpack(sums / total[:, None], row.dimensions)
            found[row.name] = _single(fit(means, second, seen, gamma))
    return found


def membership(row: Row, table: Summary) -> Tensor:
    """Which classes (columns) are added to which rows of the sum: 0 or 1."""
    segment = next(s for s in table.layout.segments if s.name == row.name)
    member = torch.zeros(segment.rows, table.classes)
    for label, rows in enumerate(segment.rows_of):
        member[list(rows), label] = 1.0
    return member


def _single(fitted: Gaussians) -> Gaussians:
    return Gaussians(fitted.means.float(), fitted.covariances.float(), fitted.jitters.float(), fitted.known)


def mismatch(
    vectors: Tensor, labels: Tensor, table: Summary, wanted: Mapping[str, Gaussians], class_weight: float
) -> Tensor:
    """The SPS objective (eq. 2): KL of released Gaussians to the batch's, global plus `class_weight` × class part."""
    one_hot = functional.one_hot(labels, table.classes).to(vectors)
    loss = vectors.new_zeros(())
    for scope, weight in (("global", 1.0), ("some", class_weight)):
        parts = []
        for row in table.rows:
            if row.order == 2 and (row.scope == "global") == (scope == "global"):
                picked = membership(row, table).to(vectors) @ one_hot.T
                share = picked / picked.sum(1, keepdim=True).clamp_min(1.0)
                moved = share @ (vectors[:, table.columns[row.name]] / table.weights[row.name])
                parts.append(divergence(wanted[row.name], *unpack(moved, row.dimensions)).mean())
        if parts and weight:
            loss = loss + weight * torch.stack(parts).mean()
    return loss


def synthesise(
    statistics: Statistics,
    method: MethodSettings,
    settings: SynthesisSettings,
    *,
    classes: tuple[str, ...],
    shape: Shape,
    images_per_class: int,
    public_seed: int,
    device: torch.device | None = None,
    progress: Progress = silent,
) -> SyntheticSet:
    """Optimise batches of images until there are `images_per_class` of every class, and label them."""
    table = summary(method, _backbone(method.backbone, ""), len(classes), shape, public_seed)
    wanted = targets(statistics, table, settings.eigenvalue_jitter)
    found = teacher.from_statistics(statistics, table) if method.features else None
    per_class = min(settings.batch_per_class, images_per_class)
    batches = math.ceil(images_per_class / per_class)
    made = []
    for batch in range(batches):
        generator = torch.Generator().manual_seed(subseed(public_seed, f"sps batch {batch}"))
        labels = torch.arange(len(classes)).repeat_interleave(per_class)

        def step_done(done: int, batch: int = batch) -> None:
            progress("synthesising images", batch * settings.steps + done, batches * settings.steps)

        made.append(_optimise(labels, table, wanted, found, settings, shape, generator, step_done))
    images = torch.stack([part.view(len(classes), per_class, *shape) for part in made], 1)
    images = images.reshape(len(classes), batches * per_class, *shape)[:, :images_per_class].reshape(-1, *shape)
    labels = torch.arange(len(classes)).repeat_interleave(images_per_class)
    pixels = (images * 255.0).round().to(torch.uint8)
    soft = None
    if settings.soft_labels and found is not None:
        soft = teacher.soft_labels(found, table, pixels.float() / 255.0, labels).numpy()
    return SyntheticSet(pixels.numpy(), labels.numpy(), classes, soft)


def _optimise(
    labels: Tensor,
    table: Summary,
    wanted: Mapping[str, Gaussians],
    found: teacher.Teacher | None,
    settings: SynthesisSettings,
    shape: Shape,
    generator: torch.Generator,
    step_done: object,
) -> Tensor:
    canvas = Canvas(len(labels), shape, generator)
    optimiser = torch.optim.Adam(canvas.levels, lr=settings.learning_rate, betas=(0.5, 0.9))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, settings.steps)
    for step in range(settings.steps):
        images = canvas.images()
        # The jostling starts small: shapes form first, then they learn to survive it.
        strength = settings.jostling * min(1.0, 2.0 * step / settings.steps)
        seen = jostle(images, strength, settings.flips, generator)
        vectors = table.clipped(table.vectors(seen))
        loss = mismatch(vectors, labels, table, wanted, settings.class_weight)
        if found is not None and settings.teacher_weight:
            loss = loss + settings.teacher_weight * functional.cross_entropy(found.judge(vectors), labels)
        loss = loss + settings.smoothness * roughness(images) + settings.range_weight * outside(images)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        schedule.step()
        step_done(step + 1)  # type: ignore[operator]
    return canvas.images().detach().clamp(0.0, 1.0)
