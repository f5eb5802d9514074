"""Rows of a mixture: its marginals come out more exactly than by chance, and few herded rows have its moments."""

from __future__ import annotations

import numpy as np
import pytest

from dpdd.common.methods.sps_table.marginals import Marginals
from dpdd.common.methods.sps_table.mixture import Mixture
from dpdd.common.methods.sps_table.rows import draw, herd
from dpdd.common.methods.sps_table.settings import MethodSettings
from tests.methods.harness import TABLE

MARGINALS = Marginals(TABLE.features, 2, MethodSettings())


def made(components: int = 5, seed: int = 0) -> Mixture:
    generator = np.random.Generator(np.random.PCG64(seed))
    cells = np.empty((2, components, MARGINALS.width))
    for part in MARGINALS.cells:
        cells[..., part] = generator.dirichlet(np.full(part.stop - part.start, 0.3), (2, components))
    return Mixture(generator.dirichlet(np.ones(components), 2), cells, np.array([100.0, 50.0]))


def one_hot_mean(rows: np.ndarray) -> np.ndarray:
    return MARGINALS.one_hot(rows.astype(np.float32)).mean(0)


def test_marginals_come_out_to_a_row_per_component() -> None:
    mixture, count = made(), 1000
    for label in range(2):
        wanted = mixture.shares[label] @ mixture.cells[label]
        rows = draw(mixture, MARGINALS, label, count, seed=4)
        assert rows.shape == (count, len(MARGINALS.columns))
        assert np.abs(one_hot_mean(rows) - wanted).max() <= 3 * 5 / count


def test_columns_are_independent_within_a_component() -> None:
    """Also where every component has a row or two: offsets of columns must not be the same."""
    generator = np.random.Generator(np.random.PCG64(1))
    uniform = np.concatenate(
        [np.full(part.stop - part.start, 1 / (part.stop - part.start)) for part in MARGINALS.cells]
    )
    mixture = Mixture(np.full((2, 800), 1 / 800), np.tile(uniform, (2, 800, 1)), np.ones(2))
    for count in (800, 1600):
        rows = draw(mixture, MARGINALS, 0, count, seed=int(generator.integers(100)))
        together = np.corrcoef(rows, rowvar=False)[np.triu_indices(rows.shape[1], 1)]
        assert np.abs(together).max() < 5.0 / np.sqrt(count)


def test_rows_are_in_random_order() -> None:
    rows = draw(made(), MARGINALS, 0, 1000, seed=4)
    whole = one_hot_mean(rows)
    assert np.abs(one_hot_mean(rows[:500]) - whole).max() < 0.1


def test_the_same_seed_gives_the_same_rows() -> None:
    one, same, other = (draw(made(), MARGINALS, 0, 50, seed) for seed in (1, 1, 2))
    assert np.array_equal(one, same) and not np.array_equal(one, other)


@pytest.mark.parametrize("count", [1, 10, 40])
def test_herded_rows_are_closer_to_the_moments(count: int) -> None:
    def distance(rows: np.ndarray) -> float:
        hot = MARGINALS.one_hot(rows.astype(np.float32)).astype(np.float64)
        return float(np.square(hot.T @ hot / len(rows) - second).sum())

    mixture = made()
    many = MARGINALS.one_hot(draw(mixture, MARGINALS, 0, 20_000, seed=9).astype(np.float32)).astype(np.float64)
    second = many.T @ many / len(many)
    drawn = [distance(draw(mixture, MARGINALS, 0, count, seed)) for seed in range(20)]
    assert distance(herd(mixture, MARGINALS, 0, count, seed=1)) < np.mean(drawn)
