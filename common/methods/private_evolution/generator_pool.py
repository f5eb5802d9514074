"""Members out of a pool of public images: variations are neighbours in a public embedding, mixtures, and small warps.

The pool is on this machine already: nothing is downloaded. Its labels are not looked at. Silos that vote need no pool;
whoever makes populations does, which in decentralised mode are the silos.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from dpdd.common.data import benchmarks
from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.private_evolution.generator import Generator
from dpdd.common.methods.private_evolution.generator_shapes import Bytes, to_bytes, to_floats, warped
from dpdd.common.methods.private_evolution.settings import EvolutionSettings
from dpdd.common.methods.private_evolution.specification import ImageVectors, image_vectors
from dpdd.common.randomness import uniforms

AT_ONCE = 500
"""Images whose neighbours are looked for together."""
SELF = 1e-6
"""Squared distance within which an image is taken for the pool's own."""
_WARP, _MIX = 0.3, 0.6  # of a variation of strength 1


class PoolGenerator(Generator):
    """Images of a public pool (N, C, H, W), their vectors, and how many neighbours a variation of strength 1 has."""

    def __init__(self, images: Bytes, vectors: Tensor, embedding: ImageVectors, reach: int) -> None:
        self.images, self.embedding, self.reach = images, embedding, max(1, min(reach, len(images) - 1))
        self.vectors, self.halves = vectors, 0.5 * vectors.square().sum(1)

    @classmethod
    def of(cls, settings: EvolutionSettings, run: RunDescription) -> PoolGenerator:
        """The pool that the settings name; ConfigError, or a DataError, where it is not here."""
        embedding = image_vectors(settings, run)
        images = pool_images(settings.pool, run.image_shape, settings.pool_images)
        known = (settings.pool, settings.pool_images, run.image_shape, settings.backbone, settings.features)
        vectors = _vectors((*known, settings.picture, run.backbone_sha256), _Pool(images, embedding))
        return cls(images, vectors, embedding, len(images) // settings.population)

    def random(self, count: int, seed: int) -> Bytes:
        """Any images of the pool, none twice before all were taken."""
        order = np.argsort(uniforms(seed, "private evolution pool", len(self.images)), kind="stable")
        return self.images[np.resize(order, count)]

    def variation(self, records: Bytes, mates: Bytes, strength: float, seed: int) -> Bytes:
        """A share `strength` become neighbours in the pool; the others are mixed with one, and bent a little."""
        neighbours = self.images[self.neighbours(records, strength, seed)]
        chosen = uniforms(seed, "private evolution neighbours or mixtures", len(records)) < strength
        images = neighbours.copy()
        rest = np.flatnonzero(~chosen)
        for part, begin in enumerate(range(0, len(rest), AT_ONCE)):
            places = rest[begin : begin + AT_ONCE]
            share = uniforms(seed + part, "private evolution mixtures", len(places)).astype(np.float32)
            share = (_MIX * strength * share)[:, None, None, None]
            mixed = to_floats(records[places]) * (1.0 - share) + to_floats(neighbours[places]) * share
            images[places] = to_bytes(warped(mixed, _WARP * strength, seed + part))
        return images

    def neighbours(self, records: Bytes, strength: float, seed: int) -> NDArray[np.int64]:
        """One of the nearest images of the pool for each, further away the larger the strength; never itself.

        Equal records that follow each other get different ones, as long as there are as many.
        """
        count = max(1, round(strength * self.reach))
        ahead = np.zeros(len(records), np.int64)
        flat = records.reshape(len(records), -1)
        for number in range(1, len(records)):
            if np.array_equal(flat[number], flat[number - 1]):
                ahead[number] = ahead[number - 1] + 1
        starts = np.floor(count * uniforms(seed, "private evolution ranks", len(records))).astype(np.int64)
        ranks = (starts[np.arange(len(records)) - ahead] + ahead) % count
        found = []
        for begin in range(0, len(records), AT_ONCE):
            part = slice(begin, begin + AT_ONCE)
            found.append(self._nearest(records[part], count)[np.arange(len(records[part])), ranks[part]])
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def _nearest(self, records: Bytes, count: int) -> NDArray[np.int64]:
        """The nearest `count` images of the pool for each, without the image itself, the nearest first."""
        vectors = self.embedding.of_bytes(records)
        closeness = vectors @ self.vectors.T - self.halves
        top = closeness.topk(min(count + 1, len(self.images)), dim=1)
        apart = vectors.square().sum(1, keepdim=True) - 2.0 * top.values
        own = (apart[:, :1] <= SELF).long()
        places = torch.arange(count) + own
        return top.indices.gather(1, places.clamp_max(top.indices.shape[1] - 1)).numpy()


def pool_images(name: str, shape: tuple[int, int, int], most: int) -> Bytes:
    """At most so many images of a public dataset, in the run's shape; always the same ones."""
    if name not in benchmarks.names() or not benchmarks.available(name):
        raise ConfigError(
            f"the public pool {name!r} is not on this machine: a pool is one of {', '.join(benchmarks.names())}, "
            f"and looked for in ${benchmarks.ENVIRONMENT}"
        )
    return _pool_images(name, shape, most)


@lru_cache(maxsize=2)
def _pool_images(name: str, shape: tuple[int, int, int], most: int) -> Bytes:
    images = benchmarks.load(name, "train").images
    order = np.argsort(uniforms(0, "private evolution images of the pool", len(images)), kind="stable")
    parts = []
    for begin in range(0, min(most, len(images)), AT_ONCE):
        part = torch.from_numpy(to_floats(images[order[begin : begin + min(AT_ONCE, most - begin)]]))
        if part.shape[1] != shape[0]:  # grey, or three channels of one grey
            part = part.mean(1, keepdim=True).expand(-1, shape[0], -1, -1)
        if tuple(part.shape[2:]) != shape[1:]:
            part = functional.interpolate(part, size=shape[1:], mode="bilinear", antialias=True)
        parts.append(to_bytes(part.numpy()))
    return np.concatenate(parts)


class _Pool:
    """Images and their embedding, equal to all others: what a cache is asked with beside the facts that it goes by."""

    def __init__(self, images: Bytes, embedding: ImageVectors) -> None:
        self.images, self.embedding = images, embedding

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Pool)

    def __hash__(self) -> int:
        return 0


@lru_cache(maxsize=2)
def _vectors(facts: tuple[object, ...], pool: _Pool) -> Tensor:
    return pool.embedding.of_bytes(pool.images)
