"""Class statistics and DP-FedAvg of a head: what a record adds, and the noise of every silo."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.privacy.events import Gaussian
from dpdd.scenarios.baselines import federated_heads as heads
from dpdd.scenarios.baselines.private_linear import PRODUCT, LogisticSettings, logistic, on_grid, with_bias

ONE = Gaussian(sigma=3.0)


def some_rows(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.Generator(np.random.PCG64(seed))
    labels = np.arange(count) % 3
    return with_bias(generator.normal(size=(count, 6)) + 3.0 * np.eye(6)[labels]), labels


@pytest.mark.parametrize("silos", [1, 5])
@pytest.mark.parametrize("factor", [1.0, 0.7, 1.3])
def test_noise_of_all_silos_adds_up(silos: int, factor: float) -> None:
    """Of no records at all."""
    nothing, event = [np.zeros(0, np.int64)] * silos, Gaussian(3.0 * factor)
    rows, labels = np.zeros((0, 40)), np.zeros(0, np.int64)
    sums, squares = heads.class_gaussians(rows, labels, nothing, 10, event, SeededEntropy(1))
    expected = 3.0 * np.sqrt(2.0 * silos)
    for noise in (sums, squares):
        assert (abs(noise.std() / expected - 1.0) < 0.15) == (factor == 1.0)
    released = heads.summed_moments(rows, labels, nothing, 10, event, SeededEntropy(2))
    assert released.noise == pytest.approx(factor * expected)
    assert (abs(released.sums.std() / expected - 1.0) < 0.15) == (factor == 1.0)


def test_a_record_adds_its_row_and_its_squares_to_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(heads, "noisy", lambda total, *facts: given.append(facts[:2]) or total.copy())
    rows, labels = some_rows(30)
    rows[0], grid = np.eye(7)[2], on_grid(rows)
    rows[0] = np.eye(7)[2]
    grid = on_grid(rows)
    shares = [np.arange(10), np.arange(10, 30)]
    sums, squares = heads.class_gaussians(grid, labels, shares, 3, ONE, SeededEntropy(1))
    for label in range(3):
        np.testing.assert_allclose(sums[label], rows[labels == label].sum(axis=0), atol=0.01)
        np.testing.assert_allclose(squares[label], np.square(rows[labels == label]).sum(axis=0), atol=0.01)
    assert given == [(int(np.sqrt(2.0) * PRODUCT) + 1, 3.0)] * 2
    for left_out in (0, 1, 29):
        kept = [share[share != left_out] for share in shares]
        without = heads.class_gaussians(grid, labels, kept, 3, ONE, SeededEntropy(1))
        moved = np.linalg.norm(np.stack([sums - without[0], squares - without[1]]))
        assert 0.9 < moved <= np.sqrt(2.0), "√2 for a row of one coordinate"
        assert left_out or moved > 1.41


def test_drawn_features_are_like_the_statistics() -> None:
    rows, labels = some_rows(3000)
    sums, squares = (np.stack([of[labels == label].sum(axis=0) for label in range(3)]) for of in (rows, rows**2))
    drawn, of_class = heads.drawn_features(sums, squares, 2000, seed=1)
    assert drawn.shape == (6000, 6) and np.bincount(of_class).tolist() == [2000] * 3
    for label in range(3):
        own, real = drawn[of_class == label], rows[labels == label, :-1]
        np.testing.assert_allclose(own.mean(axis=0), real.mean(axis=0), atol=0.03)
        np.testing.assert_allclose(own.std(axis=0), real.std(axis=0), atol=0.03)
    noise, _ = heads.drawn_features(-sums, -squares, 5, seed=1)
    assert np.isfinite(noise).all(), "statistics that no record could have are drawn from, too"


SETTINGS = heads.FederatedLogisticSettings(steps=12, local_steps=3, rate=0.3)


def test_every_silo_releases_as_often_as_is_accounted_for(monkeypatch: pytest.MonkeyPatch) -> None:
    given, usual = [], heads.noisy

    def watched(total: np.ndarray, sensitivity: int, sigma: float, entropy: Any) -> np.ndarray:
        given.append((total.shape, sensitivity, sigma))
        return usual(total, sensitivity, sigma, entropy)

    monkeypatch.setattr(heads, "noisy", watched)
    rows, labels = some_rows(60)
    heads.federated_logistic(
        on_grid(rows), labels, np.array_split(np.arange(60), 2), 3, SETTINGS, 2.0, SeededEntropy(1)
    )
    assert given[:2] == [((1,), PRODUCT, 2.0 * SETTINGS.count_noise)] * 2
    assert given[2:] == [((3, 7), PRODUCT, 2.0)] * (2 * SETTINGS.steps)
    assert SETTINGS.event(2.0) == LogisticSettings(steps=12, rate=0.3).event(2.0)


def test_the_head_depends_on_records_through_noisy_sums_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[np.ndarray] = []
    usual, (rows, labels), shares = heads.noisy, some_rows(60), np.array_split(np.arange(60), 2)

    def keep(*arguments: Any) -> np.ndarray:
        released.append(usual(*arguments))
        return released[-1]

    monkeypatch.setattr(heads, "noisy", keep)
    first = heads.federated_logistic(on_grid(rows), labels, shares, 3, SETTINGS, 2.0, SeededEntropy(1))
    replayed = iter(released)
    monkeypatch.setattr(heads, "noisy", lambda *arguments: next(replayed))
    others, _ = some_rows(60, seed=9)
    again = heads.federated_logistic(on_grid(others), labels[::-1], shares, 3, SETTINGS, 2.0, SeededEntropy(4))
    np.testing.assert_array_equal(first, again)


def test_rounds_of_one_silo_are_logistic_regression() -> None:
    rows, labels = some_rows(300)
    grid, everybody = on_grid(rows), [np.arange(300)]
    settings = SETTINGS.model_copy(update={"steps": 30, "rate": 1.0})
    weights = [
        heads.federated_logistic(grid, labels, everybody, 3, settings, 0.01, SeededEntropy(1)),
        logistic(grid, labels, 3, LogisticSettings(steps=30, rate=1.0), 0.01, SeededEntropy(1)),
    ]
    cosine = (weights[0] * weights[1]).sum() / np.linalg.norm(weights[0]) / np.linalg.norm(weights[1])
    assert cosine > 0.999 and ((rows @ weights[0].T).argmax(axis=1) == labels).mean() > 0.9
