"""What SPS measures of an image: a table of statistics, and the vector they make.

Each row of the table looks at one place (a layer of the public backbone, its pooled features, or a thumbnail of the
image itself), keeps a few random directions of it, squashes them to (-1, 1), and takes moments over the positions:
m = mean z, and for rows of order 2 also the upper triangle of mean z zᵀ. A row is summed over all records, over each
class, or over groups of classes. A new statistic is a new row.

Scaling: entries lie in (-1, 1), so a row of width w has norm at most √w. The class part is weighted so that its
largest norm equals the global part's (the paper's √S, with the number of groups that a record sits in counted), and the
whole is divided by `clip` times its largest norm; then a record is clipped to norm 1.

>>> import torch
>>> z = torch.tensor([[[1.0, 3.0], [0.0, 2.0]]])           # one image, two directions, two positions
>>> moments(z)                                              # means 2 and 1, second moments 5, 3 and 2
tensor([[2., 1., 5., 3., 2.]])
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from dpdd.common.models.tapped import FeatureNet
from dpdd.common.privacy.clipping import Layout, Segment, class_segment, global_segment
from dpdd.common.randomness import gaussians, uniforms

Scope = Literal["global", "class", "group"]
THUMBNAIL, FEATURES = -1, -2
MOST_POSITIONS = 200
"""Moments of large maps are taken over a regular grid of about so many positions: less work, the same law."""
_PLACES = {THUMBNAIL: "thumbnail", FEATURES: "features"}


@dataclass(frozen=True)
class Row:
    """One statistic: where (a layer, `THUMBNAIL`, `FEATURES`), how many dimensions, over whom, up to which moment.

    `weight` is its share of the contribution, and so how little noise it gets, beside the other rows of its scope.
    """

    place: int
    dimensions: int
    scope: Scope
    order: Literal[1, 2] = 2
    weight: float = 1.0

    @property
    def name(self) -> str:
        """Its name in a release."""
        return f"{self.scope}-{_PLACES.get(self.place) or f'layer-{self.place:02d}'}"

    @property
    def width(self) -> int:
        """Numbers per record: first moments, and for order 2 the upper triangle of second ones."""
        return self.dimensions if self.order == 1 else self.dimensions * (self.dimensions + 3) // 2


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
class Summary:
    """A table of statistics on a backbone, for a number of classes: everything public about an SPS release."""

    rows: tuple[Row, ...]
    network: FeatureNet
    classes: int
    seed: int
    clip: float
    count_weight: float
    groups: Groups | None = None

    @cached_property
    def layout(self) -> Layout:
        """The released sums: one segment per row of the table, and the class counts."""
        return Layout((*(self._segment(row) for row in self.rows), class_segment("count", 1, self.classes)))

    def _segment(self, row: Row) -> Segment:
        if row.scope == "global":
            return global_segment(row.name, row.width, self.classes)
        if row.scope == "class":
            return class_segment(row.name, row.width, self.classes)
        assert self.groups is not None
        return Segment(row.name, row.width, len(self.groups.members), self.groups.of_class(self.classes))

    def copies(self, row: Row) -> int:
        """How many rows of the sum a record is added to."""
        if row.scope != "group":
            return 1
        assert self.groups is not None
        return len(self.groups.of_class(self.classes)[0])

    @cached_property
    def weights(self) -> dict[str, float]:
        """What each row's entries are multiplied by, so that `clip` × the largest norm becomes √(1 - count_weight²)."""
        everyone = sum(row.width * row.weight**2 for row in self.rows if row.scope == "global")
        some = sum(row.width * row.weight**2 * self.copies(row) for row in self.rows if row.scope != "global")
        balance = math.sqrt(everyone / some) if everyone and some else 1.0
        largest = math.sqrt(everyone + some * balance**2)
        room = math.sqrt(1.0 - self.count_weight**2)
        unit = room / (self.clip * largest)
        return {r.name: r.weight * (unit if r.scope == "global" else unit * balance) for r in self.rows}

    @cached_property
    def columns(self) -> dict[str, slice]:
        """Where each row lies in a record's vector."""
        return dict(zip((s.name for s in self.layout.segments), self.layout.columns(), strict=True))

    def vectors(self, images: Tensor) -> Tensor:
        """One vector per image (without its count), weighted, not yet clipped; differentiable."""
        taps: list[Tensor] = []
        features = self.network.features(images, taps.append)
        seen: dict[tuple[int, int], Tensor] = {}  # global and class rows of one place share their moments
        parts = []
        for row in self.rows:
            key = (row.place, row.dimensions)
            if key not in seen:
                order = max(other.order for other in self.rows if (other.place, other.dimensions) == key)
                seen[key] = moments(self._directions(row, images, taps, features), order)
            parts.append(seen[key][:, : row.width] * self.weights[row.name])
        return torch.cat(parts, dim=1)

    def _directions(self, row: Row, images: Tensor, taps: list[Tensor], features: Tensor) -> Tensor:
        """z of a row: (images, directions, positions), in (-1, 1)."""
        if row.place == THUMBNAIL:
            small = functional.adaptive_avg_pool2d(images.mean(1, keepdim=True), math.isqrt(row.dimensions))
            return small.flatten(1)[:, :, None]
        if row.place == FEATURES:
            places = features[:, :, None]
        else:
            tap = taps[row.place]
            stride = max(1, round(math.sqrt(tap.shape[2] * tap.shape[3] / MOST_POSITIONS)))
            places = tap[:, :, ::stride, ::stride].flatten(2)
        projection = _projection(self.seed, row.place, row.dimensions, places.shape[1]).to(places)
        return torch.tanh(0.5 * (projection @ places))  # 2·sigmoid(·) - 1

    def clipped(self, vectors: Tensor) -> Tensor:
        """Vectors of norm at most √(1 - count_weight²), where a record in several groups counts that often."""
        squares = vectors.new_zeros(len(vectors))
        for row in self.rows:
            squares = squares + self.copies(row) * vectors[:, self.columns[row.name]].square().sum(1)
        room = math.sqrt(1.0 - self.count_weight**2)
        return vectors * (room / squares.sqrt().clamp_min(room))[:, None]


@lru_cache(maxsize=128)
def _projection(seed: int, place: int, dimensions: int, channels: int) -> Tensor:
    """Entries N(0, 1/channels); the same for every scope, so that global and class statistics can be read together."""
    drawn = gaussians(seed, f"sps projection {place} {dimensions}", (dimensions, channels)) / math.sqrt(channels)
    with torch.inference_mode(False):  # kept for later calls, which may want gradients
        return torch.from_numpy(drawn.astype(np.float32))


def moments(z: Tensor, order: int = 2) -> Tensor:
    """First moments and upper triangle of second moments, over the positions of z (images, directions, positions)."""
    first = z.mean(2)
    if order == 1:
        return first
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
