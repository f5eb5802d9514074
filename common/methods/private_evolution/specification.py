"""What silos vote on and with: the sums of a round, and the public embedding in which records find their nearest.

>>> from dpdd.common.data.table.columns import Categorical, Numeric
>>> columns = (Numeric(name="age", low=0, high=100, bins=4), Categorical(name="sex", categories=("f", "m")))
>>> points_of(columns, np.array([[0.0, 1.0], [3.0, 1.0]])).tolist()
[[8.0, 0.0, 45.0], [56.0, 0.0, 45.0]]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from dpdd.common.data.table.columns import Categorical, Column
from dpdd.common.errors import ConfigError, IntegrityError
from dpdd.common.methods.base import DataKind, RunDescription
from dpdd.common.methods.private_evolution.settings import COUNT, POPULATION, VOTES, EvolutionSettings
from dpdd.common.methods.sps.specification import backbone
from dpdd.common.models.choice import AUTO, backbone_for, check_built_for
from dpdd.common.models.feature_network import FeatureNetwork
from dpdd.common.privacy.clipping import Layout, class_segment
from dpdd.common.wire.exchange import MOST_REQUEST
from dpdd.common.wire.parsing import MOST_HEADER
from dpdd.common.wire.request import ReleaseRequest

BATCH = 64
"""Images that are embedded together."""
ROWS = 2048
"""Rows of a table that are compared together."""
APART = 64.0
"""The distance between the ends of a column of numbers; whole numbers in double precision have exact products."""
OTHER = 45.0
"""A category's coordinate: two categories are about as far apart as the ends of a column."""
PICTURE = 1.0
"""The weight of pictures beside features, which have norm 1: pictures have at most this norm."""
AT_ONCE, DRAWN, DRAWN_CHANNEL = 500, 24, 2
"""Shapes that are drawn together; and numbers in double precision for each pixel of them, and each channel of it."""
MOST_NUMBERS = 1 << 28
"""What vectors of a population may have."""


def layout(settings: EvolutionSettings, run: RunDescription) -> Layout:
    """For every class a vote per member, and a count; ConfigError for a population that could not be sent."""
    classes = len(run.classes)
    room, needed = MOST_REQUEST - MOST_HEADER, _bytes(settings, run)
    if needed > room:
        raise ConfigError(
            f"a round's population of {settings.population} members in each of {classes} classes has {needed} bytes, "
            f"and a request has room for {room}; ask for a population of {room * settings.population // needed} at most"
        )
    if classes * settings.population * max(_dimensions(settings, run), 1) > MOST_NUMBERS:
        raise ConfigError(
            "the vectors of the population take too much memory; ask for a smaller one, or fewer features"
        )
    return Layout((class_segment(VOTES, settings.population, classes), class_segment(COUNT, 1, classes)))


def count_weight(settings: EvolutionSettings) -> float:
    """A coordinate of its own in the same vector."""
    return settings.count_weight


def population_shape(settings: EvolutionSettings, run: RunDescription) -> tuple[int, ...]:
    """Members of the classes one after another, each a record."""
    return (len(run.classes) * settings.population, *run.shape)


def population_type(run: RunDescription) -> np.dtype:
    """Pixels are bytes, and cells codes."""
    return np.dtype(np.uint8 if run.kind is DataKind.IMAGE else np.int32)


def _bytes(settings: EvolutionSettings, run: RunDescription) -> int:
    return math.prod(population_shape(settings, run)) * population_type(run).itemsize


def check_request(request: ReleaseRequest, settings: EvolutionSettings) -> None:
    """ConfigError unless the request is one that a silo can answer."""
    run = RunDescription.of(request)
    if AUTO in (settings.generator, settings.backbone):
        raise ConfigError('the request leaves generator or backbone open; a coordinator fills in "auto" itself')
    if run.kind is DataKind.IMAGE:
        image_vectors(settings, run)
    check_input(request, settings)


def check_input(request: ReleaseRequest, settings: EvolutionSettings) -> None:
    """ConfigError unless there is a population of the right kind from the second round on, and none before."""
    run = RunDescription.of(request)
    expected = {POPULATION: (population_type(run), population_shape(settings, run))} if request.stage else {}
    given = {name: (array.dtype, array.shape) for name, array in request.stage_input.items()}
    if given != expected:
        raise ConfigError(f"the request has the stage input {given}, and should have {expected}")
    if request.stage and run.kind is DataKind.TABLE:
        codes = request.stage_input[POPULATION]
        if not ((codes >= 0) & (codes < np.array([column.size for column in run.columns]))).all():
            raise ConfigError("the population of the request has numbers that are no codes of their columns")


def resolve(settings: EvolutionSettings, run: RunDescription) -> EvolutionSettings:
    """Settings that say which generator, network and features are meant."""
    table = run.kind is DataKind.TABLE
    if settings.generator == AUTO:
        settings = settings.model_copy(update={"generator": "rows" if table else "shapes"})
    if (settings.generator == "rows") != table:
        raise ConfigError(f'generator = "{settings.generator}" makes no records of shape {run.shape}')
    if table:
        return settings.model_copy(update={"backbone": "", "features": 0, "picture": 0})
    if not settings.features:
        settings = settings.model_copy(update={"backbone": ""})
        image_vectors(settings, run)
        return settings
    if settings.backbone == AUTO:
        settings = settings.model_copy(update={"backbone": backbone_for(run.shape)})
    dimensions = backbone(settings.backbone).network.whitening.dimensions
    return settings.model_copy(update={"features": min(settings.features, dimensions)})


def image_vectors(settings: EvolutionSettings, run: RunDescription) -> ImageVectors:
    """The embedding of a run's images; ConfigError where a network does not fit, or nothing is left to compare."""
    side, shape = settings.picture, run.image_shape
    if not (settings.features or side):
        raise ConfigError("images are compared by features, by a picture, or by both: ask for one of them at least")
    if side > min(shape[1:]):
        raise ConfigError(f"a picture of {side} x {side} pixels is larger than images of {shape[1]} x {shape[2]}")
    if not settings.features:
        return ImageVectors(None, 0, side)
    check_built_for(settings.backbone, shape)
    try:
        chosen = backbone(settings.backbone, run.backbone_sha256.hex())
    except IntegrityError as error:
        raise ConfigError(str(error)) from None
    chosen.check_images(shape)
    most = chosen.network.whitening.dimensions
    if settings.features > most:
        raise ConfigError(f"backbone {chosen.card.name} has {most} features, not {settings.features}")
    return ImageVectors(chosen.network, settings.features, side)


@dataclass(frozen=True, eq=False)
class ImageVectors:
    """Images as vectors whose distances say how much they are alike: whitened features, and a small picture."""

    network: FeatureNetwork | None
    features: int
    side: int

    def of(self, images: Tensor) -> Tensor:
        """Of images in [0, 1]; NaN or infinite where an image is."""
        parts = []
        if self.network is not None:
            whitened = self.network.whitening(self.network.features(images), self.features)
            parts.append(functional.normalize(whitened, dim=1, eps=1e-6))
        if self.side:
            small = functional.adaptive_avg_pool2d(images, self.side).flatten(1)
            parts.append(small * (PICTURE / math.sqrt(small.shape[1])))
        return torch.cat(parts, 1)

    def of_bytes(self, images: NDArray[np.uint8]) -> Tensor:
        """Of public images, in batches; none have vectors of no length."""
        parts = []
        with torch.inference_mode():
            for begin in range(0, len(images), BATCH):
                part = torch.from_numpy(images[begin : begin + BATCH].astype(np.float32) / np.float32(255.0))
                parts.append(self.of(part))
        return torch.cat(parts) if parts else torch.zeros(0, 1)


def points_of(columns: Sequence[Column], codes: NDArray[np.floating]) -> NDArray[np.float64]:
    """Rows of codes as points with whole coordinates: one for each category, one for a number, one for its absence."""
    parts = []
    for column, code in zip(columns, codes.T.astype(np.int64), strict=True):
        if isinstance(column, Categorical):
            parts.append(OTHER * np.eye(column.size)[code])
            continue
        places = np.floor(APART * (np.arange(column.values) + 0.5) / column.values)
        parts.append(np.append(places, np.floor(APART / 2.0))[code][:, None])
        if column.missing:
            parts.append(APART * (code == column.values)[:, None].astype(np.float64))
    return np.concatenate(parts, axis=1)


def _dimensions(settings: EvolutionSettings, run: RunDescription) -> int:
    if run.kind is DataKind.TABLE:
        return sum(column.size if isinstance(column, Categorical) else 2 for column in run.columns)
    return settings.features + run.shape[0] * settings.picture**2


def working_memory(settings: EvolutionSettings, run: RunDescription) -> int:
    """Bytes: the members' vectors, those of the classes of a batch, and what the network makes of a batch."""
    members, dimensions = len(run.classes) * settings.population, _dimensions(settings, run)
    if run.kind is DataKind.TABLE:
        return 8 * (3 * members * dimensions + ROWS * (3 * dimensions + 3 * settings.population))
    gathered = BATCH * settings.population * (dimensions + 3)
    network = image_vectors(settings, run).network
    looked_at = 0 if network is None else network.working_memory(run.shape, BATCH)
    each = (DRAWN + DRAWN_CHANNEL * run.shape[0]) * math.prod(run.shape[1:])
    drawn = 8 * min(members, AT_ONCE) * each + 2 * members * math.prod(run.shape)
    return 4 * (3 * members * dimensions + 2 * gathered) + looked_at + drawn
