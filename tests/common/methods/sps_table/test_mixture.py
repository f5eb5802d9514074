"""The fit: what stands out of the noise is found, what does not is left, whatever silos' sums weigh."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize

from dpdd.common.data.table.columns import Categorical
from dpdd.common.methods.sps_table.marginals import Floats, Marginals
from dpdd.common.methods.sps_table.mixture import Mixture, NoisyTables, _Descent, fit, one_way, simplex
from dpdd.common.methods.sps_table.settings import MethodSettings, SynthesisSettings
from dpdd.common.progress import silent
from dpdd.common.synthesis.priors import ClassCounts

LETTERS = tuple("abcd")
MARGINALS = Marginals(
    tuple(Categorical(name=f"column {at}", categories=LETTERS) for at in range(3)), 2, MethodSettings()
)


def records(count: int, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The second column copies the first, mostly; the third knows the label only."""
    generator = np.random.Generator(np.random.PCG64(seed))
    labels = (generator.random(count) < 0.3).astype(np.int64)
    first = generator.integers(0, 4, count)
    second = np.where(generator.random(count) < 0.9, first, generator.integers(0, 4, count))
    third = np.where(generator.random(count) < 0.5, 3 * labels, generator.integers(0, 4, count))
    return np.stack([first, second, third], axis=1), labels


def tables(rows: NDArray[np.int64], labels: NDArray[np.int64], noise: float, seed: int = 1) -> NoisyTables:
    generator = np.random.Generator(np.random.PCG64(seed))
    hot = MARGINALS.one_hot(rows.astype(np.float32)).astype(np.float64)
    columns = np.stack([hot[labels == label].sum(0) for label in range(2)])
    pairs = np.stack([hot[labels == label].T @ hot[labels == label] for label in range(2)])
    pairs += math.sqrt(2.0) * noise * generator.standard_normal(pairs.shape)
    columns += noise * generator.standard_normal(columns.shape)
    return NoisyTables(columns, max(noise, 0.5), (pairs + pairs.transpose(0, 2, 1)) / 2.0, max(2**0.5 * noise, 0.5))


def fitted(noisy: NoisyTables, labels: NDArray[np.int64], **settings: float) -> Mixture:
    counts = ClassCounts(np.bincount(labels).astype(np.float64), np.ones(2, bool), 10.0)
    return fit(noisy, counts, MARGINALS, SynthesisSettings(**settings), 3, silent)  # type: ignore[arg-type]


def pair(found: Mixture, label: int, one: int, other: int) -> Floats:
    left, right = (found.cells[label][:, MARGINALS.cells[at]] for at in (one, other))
    return np.einsum("k,ki,kj->ij", found.shares[label], left, right)


def test_the_nearest_distribution() -> None:
    generator = np.random.Generator(np.random.PCG64(1))
    for values in (generator.normal(0.2, 1.0, 5), np.array([-1.0, -2.0]), np.array([7.0]), np.array([0.25] * 4)):
        found = simplex(values)
        best = minimize(
            lambda p, values=values: np.square(p - values).sum(),
            np.full(len(values), 1.0 / len(values)),
            bounds=[(0.0, 1.0)] * len(values),
            constraints={"type": "eq", "fun": lambda p: p.sum() - 1.0},
        )
        np.testing.assert_allclose(found, best.x, atol=1e-4)


def test_pairs_are_found() -> None:
    """Columns alone would say that the first two agree in a quarter of the records."""
    rows, labels = records(4000)
    found = fitted(tables(rows, labels, noise=8.0), labels)
    for label in range(2):
        true = np.mean(rows[labels == label, 0] == rows[labels == label, 1])
        assert abs(np.trace(pair(found, label, 0, 1)) - true) < 0.05 and true > 0.9
        assert abs(np.trace(pair(found, label, 0, 2)) - 0.25) < 0.05


def test_the_label_is_linked_to_every_column() -> None:
    rows, labels = records(4000)
    found = fitted(tables(rows, labels, noise=8.0), labels)
    third = [np.einsum("k,kd->d", found.shares[at], found.cells[at][:, MARGINALS.cells[2]]) for at in range(2)]
    for label in range(2):
        true = np.bincount(rows[labels == label, 2], minlength=4) / (labels == label).sum()
        np.testing.assert_allclose(third[label], true, atol=0.03)


def test_noise_is_not_followed() -> None:
    """Where there is nothing but noise the fit stops at once, and columns stay independent."""
    rows, labels = records(60)
    noisy = tables(rows, labels, noise=300.0)
    at_once, further = (fitted(noisy, labels, components=8, spread=0.0, **more) for more in ({}, {"steps": 0}))
    np.testing.assert_array_equal(at_once.cells, further.cells)


def test_sums_that_silos_weighed_give_the_same() -> None:
    """Columns and pairs may be multiples of what records gave: aggregation by precision scales them."""
    rows, labels = records(4000)
    noisy = tables(rows, labels, noise=8.0)
    assert noisy.pairs is not None
    scaled = NoisyTables(noisy.columns, noisy.column_noise, 1.3 * noisy.pairs, 1.3 * noisy.pair_noise)
    plain, other = (fitted(each, labels) for each in (noisy, scaled))
    np.testing.assert_allclose(pair(plain, 0, 0, 1), pair(other, 0, 0, 1), atol=0.01)


def test_all_cells_count_the_records() -> None:
    rows, labels = records(4000)
    found = fitted(tables(rows, labels, noise=8.0), labels)
    np.testing.assert_allclose(found.records, np.bincount(labels), atol=25.0)


@pytest.mark.parametrize("noise", [0.0, 8.0])
def test_columns_alone_are_the_nearest_distributions(noise: float) -> None:
    rows, labels = records(2000)
    noisy = tables(rows, labels, noise)
    alone = NoisyTables(noisy.columns, noisy.column_noise)
    counts = np.bincount(labels).astype(np.float64)
    start = one_way(alone, counts, MARGINALS)
    for label in range(2):
        true = np.bincount(rows[labels == label, 2], minlength=4) / counts[label]
        np.testing.assert_allclose(start[label, MARGINALS.cells[2]], true, atol=0.001 + noise / 200.0)


def test_the_mean_of_several_fits_is_a_mixture_and_closer_than_they_are() -> None:
    rows, labels = records(4000, seed=5)

    def distance(found: Mixture) -> float:
        apart = 0.0
        for label, (one, other) in itertools.product(range(2), ((0, 1), (0, 2), (1, 2))):
            own = rows[labels == label]
            true = np.bincount(4 * own[:, one] + own[:, other], minlength=16).reshape(4, 4) / len(own)
            apart += float(np.abs(pair(found, label, one, other) - true).sum()) / 12.0
        return apart

    alone, together = [], []
    for seed in range(6):
        noisy = tables(rows, labels, noise=40.0, seed=seed)
        alone.append(distance(fitted(noisy, labels, fits=1)))
        found = fitted(noisy, labels, fits=6)
        assert found.shares.shape == (2, 6 * 32) and np.allclose(found.shares.sum(axis=1), 1.0)
        together.append(distance(found))
    assert np.mean(together) < np.mean(alone)


def test_a_step_is_scaled_by_a_parameters_own_gradients_and_those_of_all() -> None:
    parameter = torch.nn.Parameter(torch.zeros(4))
    descent = _Descent([parameter], rate=0.1)
    gradient = torch.tensor([3.0, 0.0, -1.0, 0.01])
    descent.step([gradient])  # the averages are these gradients themselves, once they are corrected
    all_together = math.sqrt(float(gradient.square().mean()))
    expected = [-0.1 * each / ((abs(each) + all_together) / 2.0) for each in gradient.tolist()]
    np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-5)
    assert abs(expected[3]) < 0.1 * abs(expected[2])  # a rare cell hardly moves; Adam would move all by 0.1
