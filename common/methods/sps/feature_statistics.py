"""What SPS measures of an image: a spec of statistics, and the vector they make.

Each row of the spec looks at one place (a layer of the public backbone, or a thumbnail of the image itself), keeps a
few random directions of it, squashes them to (-1, 1), and takes moments over the positions: m = mean z, and the upper
triangle of mean z zᵀ. A row is summed over all records, over each class, or over groups of classes. A new statistic is
a new entry. Beside them stands the `ImageEmbedding`: its class sums and its second moment or, in later stages, what a
classifier got wrong (`residual`).

A record's norm is 1 in all. Its squares are shared out: `count_weight`² to the count, `row_share` to the rows (if there
are any), and the rest to the embedding, half to the class sums and half to the second moment. Within the rows, entries
lie in (-1, 1), so a row of width w has norm at most √w. The class part is weighted so that its largest norm equals the
global part's (the paper's √S, with the number of groups that a record sits in counted), and the whole is divided by
`clip` times its largest norm, then clipped.

>>> import torch
>>> z = torch.tensor([[[1.0, 3.0], [0.0, 2.0]]])           # one image, two directions, two positions
>>> moments(z)                                              # means 2 and 1, second moments 5, 3 and 2
tensor([[2., 1., 5., 3., 2.]])
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import count
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from dpdd.common.models.feature_network import FeatureNetwork
from dpdd.common.privacy.clipping import (
    FIXED_POINT_ONE,
    Layout,
    Segment,
    class_segment,
    factor_scale,
    global_segment,
    product_segment,
)
from dpdd.common.randomness import gaussians, uniforms
from dpdd.common.synthesis.image_embedding import ImageEmbedding

Scope = Literal["global", "class", "group"]
THUMBNAIL = -1
CLASS_SUMS, SECOND_MOMENT, RESIDUAL, COUNT = "class-portrait", "portrait-moment", "residual", "count"
RECENTRED = 0.5
"""Later stages clip to so much of the first one's norm, as they sum differences from a reference."""
MOST_POSITIONS = 200
"""Moments of large maps are taken over a regular grid of about so many positions: less work, the same law."""


@dataclass(frozen=True)
class Statistic:
    """One statistic: where (a layer, or `THUMBNAIL`), how many dimensions, over whom.

    `weight` is its share of the contribution, and so how little noise it gets, beside the other rows of its scope.
    """

    place: int
    dimensions: int
    scope: Scope
    weight: float = 1.0

    @property
    def name(self) -> str:
        """Its name in a release."""
        return f"{self.scope}-{'thumbnail' if self.place == THUMBNAIL else f'layer-{self.place:02d}'}"

    @property
    def width(self) -> int:
        """Numbers per record: first moments, and the upper triangle of second ones."""
        return self.dimensions * (self.dimensions + 3) // 2


@dataclass(frozen=True)
class Groups:
    """Overlapping groups of classes (SPS+): `members[g]` are the classes of group g; balanced over the classes."""

    members: tuple[tuple[int, ...], ...]

    def of_class(self, classes: int) -> tuple[tuple[int, ...], ...]:
        """For each class, the groups it sits in."""
        return tuple(tuple(g for g, m in enumerate(self.members) if c in m) for c in range(classes))


def make_groups(classes: int, count: int, size: int, seed: int) -> Groups:
    """`count` random groups of `size` classes, every class in equally many of them.

    >>> groups = make_groups(classes=6, count=4, size=3, seed=1)
    >>> [len(g) for g in groups.of_class(6)]
    [2, 2, 2, 2, 2, 2]
    """
    if not 1 <= size < classes or (count * size) % classes:
        raise ValueError(f"{count} groups of {size} cannot be balanced over {classes} classes")
    for attempt in range(1000):
        rounds = count * size // classes
        keys = uniforms(seed, f"sps groups {attempt}", rounds * classes).reshape(rounds, classes)
        members = np.argsort(keys, axis=1).reshape(count, size)
        if all(len(set(row)) == size for row in members.tolist()):
            return Groups(tuple(tuple(sorted(row)) for row in members.tolist()))
    raise ValueError(f"found no balanced choice of {count} groups of {size} out of {classes} classes")


@dataclass(frozen=True, eq=False)
class FeatureStatistics:
    """A spec of statistics on a backbone, for a number of classes: everything public about a stage of an SPS release.

    `stage` 0 has the embedding's class sums and second moment; later stages have its residuals under a classifier.
    Rows look at `network`, which is the run's backbone number `turn`; the embedding at `embedding_network`, if that is
    another.
    """

    statistics: tuple[Statistic, ...]
    network: FeatureNetwork
    classes: int
    seed: int
    clip: float
    count_weight: float
    groups: Groups | None = None
    embedding: ImageEmbedding | None = None
    row_share: float = 0.5
    stage: int = 0
    turn: int = 0
    embedding_network: FeatureNetwork | None = None

    @cached_property
    def layout(self) -> Layout:
        """The released sums: one segment per row of the spec, what belongs to the embedding, and the class counts."""
        return Layout((*(self._segment(statistic) for statistic in self.statistics), *self._of_embedding, self._count))

    @cached_property
    def _count(self) -> Segment:
        return class_segment(COUNT, 1, self.classes)

    @cached_property
    def _of_embedding(self) -> tuple[Segment, ...]:
        if self.embedding is None:
            return ()
        size, share = self.embedding.dimensions, 1.0 - self.count_weight**2 - self._row_share
        if self.stage:
            return (product_segment(RESIDUAL, self.classes, size, self.classes, math.sqrt(share)),)
        half = math.sqrt(share / 2.0)
        moment = product_segment(SECOND_MOMENT, size, size, self.classes, half, symmetric=True)
        return class_segment(CLASS_SUMS, size, self.classes), moment

    @property
    def _row_share(self) -> float:
        """The part of a record's squared norm that the rows have."""
        if self.embedding is None:
            return 1.0 - self.count_weight**2
        return self.row_share if self.statistics else 0.0

    def _segment(self, statistic: Statistic) -> Segment:
        if statistic.scope == "global":
            return global_segment(statistic.name, statistic.width, self.classes)
        if statistic.scope == "class":
            return class_segment(statistic.name, statistic.width, self.classes)
        assert self.groups is not None
        return Segment(statistic.name, statistic.width, len(self.groups.members), self.groups.of_class(self.classes))

    def copies(self, statistic: Statistic) -> int:
        """How many rows of the sum a record is added to."""
        if statistic.scope != "group":
            return 1
        assert self.groups is not None
        return len(self.groups.of_class(self.classes)[0])

    @cached_property
    def weights(self) -> dict[str, float]:
        """What each released number is multiplied by; rows so that `clip` × the largest norm becomes their share."""
        everyone = sum(
            statistic.width * statistic.weight**2 for statistic in self.statistics if statistic.scope == "global"
        )
        some = sum(
            statistic.width * statistic.weight**2 * self.copies(statistic)
            for statistic in self.statistics
            if statistic.scope != "global"
        )
        balance = math.sqrt(everyone / some) if everyone and some else 1.0
        clip = self.clip * RECENTRED if self.stage else self.clip
        unit = math.sqrt(self._row_share) / (clip * math.sqrt(everyone + some * balance**2)) if self.statistics else 0.0
        weights = {r.name: r.weight * (unit if r.scope == "global" else unit * balance) for r in self.statistics}
        for segment in self._of_embedding:
            if segment.factors is None:
                weights[segment.name] = math.sqrt((1.0 - self.count_weight**2 - self._row_share) / 2.0)
            else:
                weights[segment.name] = factor_scale(segment, 0) * factor_scale(segment, 1) / FIXED_POINT_ONE
        return {**weights, COUNT: self.count_weight}

    @cached_property
    def columns(self) -> dict[str, slice]:
        """Where each row lies in a record's vector."""
        return dict(zip((s.name for s in self.layout.plain), self.layout.columns(), strict=True))

    def measure(
        self, images: Tensor, reference: Tensor | None = None, *, embed: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """The rows' vector of each image, weighted and clipped, and its embedding, if wanted; differentiable.

        In later stages it is clipped as in the first, so that all stages sum the same thing; then its `reference` is
        taken off, and the rest is clipped again.
        """
        seen, embedding = self._look(images, embed=embed)
        return self._weighted(images, seen, reference), embedding

    def look(self, images: Tensor) -> Tensor:
        """All that any stage needs of each image, side by side: moments at each place, and its embedding."""
        seen, embedding = self._look(images, embed=True)
        parts = [seen[place] for place in self._places]
        return torch.cat(parts if embedding is None else [*parts, embedding], dim=1)

    def measure_again(self, looked: Tensor, reference: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """What `measure` gives of images, from what `look` gave of them."""
        seen, start = {}, 0
        for place in self._places:
            stop = start + place[1] * (place[1] + 3) // 2
            seen[place] = looked[:, start:stop]
            start = stop
        embedding = None if self.embedding is None else looked[:, start:].contiguous()
        return self._weighted(looked, seen, reference), embedding

    @property
    def _places(self) -> list[tuple[int, int]]:
        """Where moments are taken, and of how many directions."""
        return sorted({(statistic.place, statistic.dimensions) for statistic in self.statistics})

    def _look(self, images: Tensor, *, embed: bool) -> tuple[dict[tuple[int, int], Tensor], Tensor | None]:
        seen: dict[tuple[int, int], Tensor] = {}  # global and class rows of one place share their moments
        layers = count()

        def look(layer: Tensor) -> None:  # at once, so that no layer has to be kept
            self._see(next(layers), layer, seen)

        self._see(THUMBNAIL, images, seen)
        features = self.network.features(images, look if self.statistics else None)
        of = self.embedding_network or self.network
        if embed and self.embedding is not None and of is not self.network:
            features = of.features(images)
        return seen, self.embedding.of(of, images, features) if embed and self.embedding is not None else None

    def _weighted(self, images: Tensor, seen: dict[tuple[int, int], Tensor], reference: Tensor | None) -> Tensor:
        """The rows' vectors, from moments."""
        parts = [images.new_zeros(len(images), 0)]
        parts += [
            seen[statistic.place, statistic.dimensions] * self.weights[statistic.name] for statistic in self.statistics
        ]
        room = math.sqrt(self._row_share)
        vectors = self._clipped(torch.cat(parts, dim=1), room / RECENTRED if self.stage else room)
        return vectors if reference is None else self._clipped(vectors - reference, room)

    def _see(self, place: int, tensor: Tensor, seen: dict[tuple[int, int], Tensor]) -> None:
        """Add the moments that rows take at a place: of a layer, or of the images themselves."""
        for dimensions in {statistic.dimensions for statistic in self.statistics if statistic.place == place}:
            seen[place, dimensions] = moments(self._directions(place, dimensions, tensor))

    def _directions(self, place: int, dimensions: int, tensor: Tensor) -> Tensor:
        """z of a row: (images, directions, positions), in (-1, 1)."""
        if place == THUMBNAIL:
            small = functional.adaptive_avg_pool2d(tensor.mean(1, keepdim=True), math.isqrt(dimensions))
            return small.flatten(1)[:, :, None]
        stride = max(1, round(math.sqrt(tensor.shape[2] * tensor.shape[3] / MOST_POSITIONS)))
        places = tensor[:, :, ::stride, ::stride].flatten(2)
        projection = _projection(self.seed, place, dimensions, places.shape[1]).to(places)
        return torch.tanh(0.5 * projection @ places)  # 2·sigmoid(·) - 1

    def _clipped(self, vectors: Tensor, room: float) -> Tensor:
        """Vectors of norm at most `room`, where a record in several groups counts that often."""
        squares = vectors.new_zeros(len(vectors))
        for statistic in self.statistics:
            squares = squares + self.copies(statistic) * vectors[:, self.columns[statistic.name]].square().sum(1)
        return vectors * (room / squares.sqrt().clamp_min(max(room, 1e-12)))[:, None]


@lru_cache(maxsize=128)
def _projection(seed: int, place: int, dimensions: int, channels: int) -> Tensor:
    """Entries N(0, 1/channels); the same for every scope, so that global and class statistics can be read together."""
    drawn = gaussians(seed, f"sps projection {place} {dimensions}", (dimensions, channels)) / math.sqrt(channels)
    with torch.inference_mode(False):  # kept for later calls, which may want gradients
        return torch.from_numpy(drawn.astype(np.float32))


def moments(z: Tensor) -> Tensor:
    """First moments and upper triangle of second moments, over the positions of z (images, directions, positions)."""
    first = z.mean(2)
    second = z @ z.transpose(1, 2) / z.shape[2]
    rows, columns = torch.triu_indices(z.shape[1], z.shape[1], device=z.device)
    upper = second.flatten(1).index_select(1, rows * z.shape[1] + columns)
    return torch.cat([first, upper], dim=1)


def unpack(vectors: Tensor, dimensions: int) -> tuple[Tensor, Tensor]:
    """Means and symmetric second-moment matrices from vectors made by `moments`."""
    rows, columns = torch.triu_indices(dimensions, dimensions, device=vectors.device)
    matrix = vectors.new_zeros(*vectors.shape[:-1], dimensions, dimensions)
    matrix[..., rows, columns] = vectors[..., dimensions:]
    matrix[..., columns, rows] = vectors[..., dimensions:]
    return vectors[..., :dimensions], matrix
