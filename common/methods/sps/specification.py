"""Which feature statistics a stage of a run has: both sides build the same, from the request alone."""

from __future__ import annotations

from functools import lru_cache

from dpdd.common.errors import ConfigError, IntegrityError
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.sps.feature_statistics import (
    THUMBNAIL,
    FeatureStatistics,
    Scope,
    Statistic,
    make_groups,
)
from dpdd.common.methods.sps.settings import MethodSettings
from dpdd.common.models.backbone import Backbone
from dpdd.common.models.backbone import load as load_backbone
from dpdd.common.models.choice import AUTO, backbone_for, check_built_for
from dpdd.common.synthesis.image_embedding import ImageEmbedding

BATCH = 64
"""Records that pass through a backbone together, in a silo."""


@lru_cache(maxsize=16)
def backbone(name: str, sha256: str = "") -> Backbone:
    """A public backbone, kept in memory; with the hash that it must have, if one is given."""
    return load_backbone(name, sha256 or None)


def with_backbone(settings: MethodSettings, shape: tuple[int, ...]) -> MethodSettings:
    """Settings in which somebody named a backbone and a number of features, or else those that suit the images."""
    if settings.backbone == AUTO:
        settings = settings.model_copy(update={"backbone": backbone_for(shape)})
    if "features" in settings.model_fields_set:
        return settings
    network = backbone(settings.backbone).network
    return settings.model_copy(update={"features": min(network.default_features, network.whitening.dimensions)})


def pinned(settings: MethodSettings) -> MethodSettings:
    """Settings that name `more_backbones` by their hashes too, so that all sides mean the same files."""
    hashes = tuple(backbone(name).card.sha256 for name in settings.more_backbones)
    return settings.model_copy(update={"more_sha256": hashes})


def check_pinned(settings: MethodSettings) -> None:
    """ConfigError unless all of `more_backbones` have a hash."""
    if len(settings.more_sha256) != len(settings.more_backbones) or not all(settings.more_sha256):
        raise ConfigError("the request names more_backbones without their hashes, so it might mean any files")


def specification(settings: MethodSettings, run: RunDescription, stage: int) -> FeatureStatistics:
    """The feature statistics of a stage; ConfigError where a backbone is not the one that the run names."""
    for each, _ in settings.backbones:
        check_built_for(each, run.shape)
    settings = with_backbone(settings, run.shape)
    name, sha256 = settings.backbones[stage % len(settings.backbones)]
    try:
        first = backbone(settings.backbone, run.backbone_sha256.hex())
        chosen = backbone(name, sha256) if stage % len(settings.backbones) else first
    except IntegrityError as error:
        raise ConfigError(str(error)) from None
    return feature_statistics(settings, chosen, len(run.classes), run.shape, run.public_seed, stage, first)


def specifications(settings: MethodSettings, run: RunDescription, stages: int) -> list[FeatureStatistics]:
    """Those of the first so many stages."""
    return [specification(settings, run, stage) for stage in range(stages)]


def feature_statistics(
    settings: MethodSettings,
    backbone: Backbone,
    classes: int,
    shape: tuple[int, ...],
    seed: int,
    stage: int = 0,
    first: Backbone | None = None,
) -> FeatureStatistics:
    """The feature statistics of a stage on `backbone`, the embedding on `first` (left out: the same)."""
    network, first = backbone.network, first or backbone
    layers, channels = len(network.layer_channels), backbone.card.architecture.channels
    for each in (backbone, first):
        each.check_images(shape)
    if settings.features > first.network.whitening.dimensions:
        raise ConfigError(
            f"backbone {first.card.name} has {first.network.whitening.dimensions} features, not {settings.features}"
        )
    scope: Scope = "group" if settings.groups else "class"
    statistics = [
        Statistic(layer, settings.global_dimensions, "global") for layer in range(layers) if settings.global_dimensions
    ]
    statistics += [
        Statistic(layer, settings.class_dimensions, scope)
        for layer in range(max(layers - settings.class_layers, 0), layers)
    ]
    if settings.thumbnail:
        statistics.append(Statistic(THUMBNAIL, settings.thumbnail**2, scope))
    groups = None
    if settings.groups:
        groups = make_groups(classes, settings.groups, settings.classes_per_group, settings.group_seed)
    embedding = None
    if settings.features or settings.picture:
        embedding = ImageEmbedding(settings.features, settings.picture, channels)
    clip, count, share = settings.clip, settings.count_weight, settings.row_share
    turn, other = stage % len(settings.backbones), None if first is backbone else first.network
    return FeatureStatistics(
        tuple(statistics), network, classes, seed, clip, count, groups, embedding, share, stage, turn, other
    )


def stage_input_shapes(spec: FeatureStatistics) -> dict[str, tuple[int, ...]]:
    """The arrays that a later stage is asked with: a classifier, and means to centre on."""
    shapes: dict[str, tuple[int, ...]] = {}
    if spec.embedding is not None:
        shapes["teacher"] = (spec.classes, spec.embedding.dimensions)
    if spec.statistics:
        shapes["rows"] = (spec.classes, sum(statistic.width for statistic in spec.statistics))
    return shapes


def working_memory(settings: MethodSettings, run: RunDescription, stage: int) -> int:
    """The networks of a stage, one after the other, and their projections."""
    spec = specification(settings, run, stage)
    networks = {id(each): each for each in (spec.network, spec.embedding_network or spec.network)}
    return sum(network.working_memory(run.shape, BATCH) for network in networks.values())
