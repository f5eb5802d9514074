"""Which images of a public pool: those that a classifier is surest of, and few of them that differ from each other.

>>> probabilities = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.3, 0.7]])
>>> surest(probabilities, 2).tolist()
[0, 2]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpdd.common.errors import DataError
from dpdd.common.randomness import uniforms

_ROUNDS = 8
"""Of k-means: more move hardly anything."""


def surest(probabilities: NDArray[np.floating], count: int) -> NDArray[np.int64]:
    """`count` images in the pool's order: the surest of each class, then the second of each, and so on."""
    ranks = np.empty(probabilities.shape, np.int64)
    order = np.argsort(-probabilities, axis=0, kind="stable")
    np.put_along_axis(ranks, order, np.arange(len(probabilities))[:, None], axis=0)
    return np.sort(np.argsort(ranks.min(axis=1), kind="stable")[:count])


def candidates(probabilities: NDArray[np.floating], label: int, count: int) -> NDArray[np.int64]:
    """At most `count` images whose first class is `label`, the surest first."""
    own = np.flatnonzero(probabilities.argmax(axis=1) == label)
    chosen: NDArray[np.int64] = own[np.argsort(-probabilities[own, label], kind="stable")[:count]]
    return chosen


def spread_out(vectors: NDArray[np.float32], count: int, seed: int, purpose: str) -> NDArray[np.int64]:
    """`count` of the vectors, one from each of as many clusters (k-means): those next to the centres."""
    order = np.argsort(uniforms(seed, purpose, len(vectors)), kind="stable")
    centres = vectors[order[:count]].copy()
    for _ in range(_ROUNDS):
        nearest = _distances(vectors, centres).argmin(axis=1)
        for place in range(count):
            if (nearest == place).any():
                centres[place] = vectors[nearest == place].mean(axis=0)
    distances = _distances(vectors, centres)
    chosen = np.empty(count, np.int64)
    for place in range(count):
        chosen[place] = distances[:, place].argmin()
        distances[chosen[place]] = np.inf  # each image once
    return chosen


def _distances(vectors: NDArray[np.float32], centres: NDArray[np.float32]) -> NDArray[np.float32]:
    """Squared distances (vectors, centres)."""
    squares = (vectors**2).sum(axis=1)[:, None] + (centres**2).sum(axis=1)
    distances: NDArray[np.float32] = squares - 2.0 * vectors @ centres.T
    return distances


def spread_over_classes(
    probabilities: NDArray[np.floating],
    vectors: NDArray[np.float32],
    count: int,
    classes: tuple[str, ...],
    seed: int,
    of: int,
) -> NDArray[np.int64]:
    """`count` images for each class, spread out among the `of` surest of it, class by class.

    DataError for a class that the pool has too few images of.
    """
    chosen = []
    for label, name in enumerate(classes):
        own = candidates(probabilities, label, max(of, count))
        if len(own) < count:
            raise DataError(
                f"the classifier takes {len(own)} images of the pool for {name!r}, and {count} are to be selected; "
                "a larger pool, or one with more such images, is needed, or fewer images per class"
            )
        chosen.append(own[spread_out(vectors[own], count, seed, f"pool selection {label}")])
    return np.concatenate(chosen)
