"""Which images of a pool: the surest ones, and few that differ."""

from __future__ import annotations

import numpy as np
import pytest

from dpdd.common.errors import DataError
from dpdd.server.pool.selection import candidates, spread_out, spread_over_classes, surest

GENERATOR = np.random.default_rng(0)


def test_the_surest_are_as_many_of_every_class() -> None:
    soft = GENERATOR.dirichlet(np.full(3, 0.3), 300)
    chosen = surest(soft, 30)
    for label in range(3):
        assert set(np.argsort(-soft[:, label])[:9].tolist()) <= set(chosen.tolist())
    assert len(chosen) == 30 and (np.diff(chosen) > 0).all()
    assert len(surest(soft, 10_000)) == 300


def test_candidates_are_of_their_class_the_surest_first() -> None:
    soft = GENERATOR.dirichlet(np.ones(3), 100)
    chosen = candidates(soft, 1, 7)
    assert (soft[chosen].argmax(axis=1) == 1).all() and (np.diff(soft[chosen, 1]) <= 0).all()


def test_one_image_of_every_cluster_is_selected() -> None:
    centres = np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0], [9.0, 9.0]])
    cluster = np.arange(40) % 4
    vectors = (centres[cluster] + 0.1 * GENERATOR.standard_normal((40, 2))).astype(np.float32)
    hits = [len(set(cluster[spread_out(vectors, 4, seed, "test")].tolist())) for seed in range(5)]
    assert max(hits) == 4 and min(hits) >= 3, "k-means may end in two centres for one cluster, not in fewer"
    everything = spread_out(vectors, 40, 0, "test")
    assert sorted(everything.tolist()) == list(range(40)), "each image once"


def test_a_seed_decides_and_a_class_that_is_too_small_is_named() -> None:
    soft, vectors = GENERATOR.dirichlet(np.ones(2), 50), GENERATOR.standard_normal((50, 4)).astype(np.float32)
    first, again = (spread_over_classes(soft, vectors, 3, ("cat", "dog"), 7, 10) for _ in range(2))
    assert np.array_equal(first, again) and soft[first].argmax(axis=1).tolist() == [0, 0, 0, 1, 1, 1]
    soft[:, 1] = 0.0
    with pytest.raises(DataError, match="'dog'"):
        spread_over_classes(soft, vectors, 3, ("cat", "dog"), 7, 10)
