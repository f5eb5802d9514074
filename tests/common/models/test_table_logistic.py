"""Logistic regression on cells: it finds the minimum, and what it says of a row depends on that row to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from dpdd.common.models.table_logistic import fit, scorer, weights_shape
from tests.methods.harness import CLASSES, TABLE, rows

CELLS = sum(column.size for column in TABLE.features)


def one_hot(codes: NDArray[np.float32]) -> NDArray[np.float64]:
    """Cell by cell, without any of the tricks."""
    hot = np.zeros((len(codes), CELLS))
    for at, row in enumerate(codes):
        start = 0
        for code, column in zip(row, TABLE.features, strict=True):
            hot[at, start + int(code)] = 1.0
            start += column.size
    return hot


def loss(flat: NDArray[np.float64], hot: NDArray[np.float64], wanted: NDArray[np.float64], decay: float) -> float:
    weights = flat.reshape(len(CLASSES), CELLS + 1)
    logits = hot @ weights[:, :-1].T + weights[:, -1]
    logits -= logits.max(1, keepdims=True)
    chances = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return float(-(wanted * chances).sum(1).mean() + 0.5 * decay * np.square(weights[:, :-1]).sum())


@pytest.mark.parametrize("soft", [False, True])
def test_the_fit_is_the_minimum_that_another_optimiser_finds(soft: bool) -> None:
    codes, labels = rows(60, TABLE, seed=1)
    wanted = np.eye(len(CLASSES))[labels]
    if soft:
        wanted = 0.7 * wanted + 0.3 / len(CLASSES)
    hot, decay = one_hot(codes), 0.05
    target = torch.from_numpy(wanted) if soft else torch.from_numpy(labels)
    found = fit(torch.from_numpy(codes), target, TABLE, decay)
    best = minimize(loss, np.zeros(found.size), args=(hot, wanted, decay), method="L-BFGS-B", tol=1e-10)
    assert loss(found.astype(np.float64).ravel(), hot, wanted, decay) < best.fun + 1e-5


def test_scores_are_sums_of_the_weights_of_cells() -> None:
    codes, _ = rows(50, TABLE)
    weights = np.random.default_rng(0).normal(size=weights_shape(TABLE)).astype(np.float32)
    expected = one_hot(codes) @ weights[:, :-1].T.astype(np.float64) + weights[:, -1]
    np.testing.assert_allclose(scorer(weights, TABLE)(torch.from_numpy(codes)).numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("spread", [1.0, 1e30])
def test_a_row_says_the_same_to_the_last_bit_whoever_is_beside_it(spread: float) -> None:
    codes, _ = rows(300, TABLE)
    weights = (spread * np.random.default_rng(0).normal(size=weights_shape(TABLE))).astype(np.float32)
    answer, given = scorer(weights, TABLE), torch.from_numpy(codes)
    alone = torch.cat([answer(given[at : at + 1].clone()) for at in range(len(codes))])
    assert torch.equal(answer(given), alone)
    for kept in (slice(1, None), slice(None, 17), slice(5, 290, 3)):
        assert torch.equal(answer(given[kept]), alone[kept])


def test_nothing_to_learn_from_says_the_same_of_everything() -> None:
    nothing: Tensor = torch.zeros(0, len(TABLE.features))
    weights = fit(nothing, torch.zeros(0, dtype=torch.int64), TABLE, 0.1)
    assert weights.shape == weights_shape(TABLE) and not weights.any()


def test_a_class_that_nobody_has_is_unlikely_and_finite() -> None:
    codes, labels = rows(200, TABLE)
    assert 3 not in labels
    weights = fit(torch.from_numpy(codes), torch.from_numpy(labels), TABLE, 0.01)
    assert np.isfinite(weights).all()
    assert (scorer(weights, TABLE)(torch.from_numpy(codes)).argmax(1) != 3).all()
