"""Linear baselines: sums of exactly known sensitivity, noise of the right size, and closed forms that learn."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from dpdd.common.privacy.accounting import guarantee
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.privacy.events import Gaussian, PoissonGaussian, gaussian_mu, parts
from dpdd.scenarios.baselines import private_linear
from dpdd.scenarios.baselines.private_linear import (
    PRODUCT,
    UNIT,
    LogisticSettings,
    clipped_gradient,
    lda,
    logistic,
    moments,
    noisy,
    on_grid,
    ridge,
    with_bias,
)


def blobs(count: int, seed: int, width: int = 6) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.Generator(np.random.PCG64(seed))
    labels = np.arange(count) % 3
    features = generator.normal(size=(count, width)) + 3.0 * np.eye(width)[labels]
    return features, labels


class NoNoise:
    """Draws that are all 0: sums as they are."""

    releasable = False

    def take(self, count: int) -> bytes:
        return (2**63).to_bytes(8, "little") * (count // 8)


def test_rows_on_the_grid_have_norm_one_at_most_and_lose_little() -> None:
    features, _ = blobs(300, 0)
    rows = np.concatenate([with_bias(features), 1e9 * features.repeat(7, 1)[:, :7], np.full((1, 7), np.nan)])
    grid = on_grid(rows)
    assert (grid == np.trunc(grid)).all()
    assert ((grid**2).sum(axis=1) <= UNIT**2).all(), "exact: the squares are integers"
    assert (grid[-1] == 0).all()
    assert np.abs(grid[:300] / UNIT - rows[:300]).max() < 1.01 / UNIT


def test_odd_features_become_the_bias_alone() -> None:
    odd = np.array([[0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0], [1e200, 1e200]])
    rows = with_bias(odd)
    assert (rows[:, :-1] == 0).all() and np.isfinite(rows).all()


@pytest.mark.parametrize("clip", [0.05, 0.4, 1.0, 5.0])
def test_gradients_are_clipped_as_autograd_would(clip: float) -> None:
    features, labels = blobs(40, 1)
    rows = with_bias(features)
    weight = np.random.Generator(np.random.PCG64(2)).normal(size=(3, 7)) * 3
    expected = torch.zeros(3, 7, dtype=torch.float64)
    clipped = 0
    for row, label in zip(torch.from_numpy(rows), torch.from_numpy(labels), strict=True):
        parameter = torch.from_numpy(weight).clone().requires_grad_()
        loss = functional.cross_entropy((parameter @ row)[None], label[None])
        (gradient,) = torch.autograd.grad(loss, parameter)
        clipped += bool(gradient.norm() > clip)
        expected += gradient * min(1.0, clip / float(gradient.norm()))
    gradient = clipped_gradient(on_grid(rows), labels, weight, clip) * clip / PRODUCT
    np.testing.assert_allclose(gradient, expected.numpy(), atol=40 * 3e-4 * clip)
    assert (clipped > 30) == (clip == 0.05) and (clipped == 0) == (clip == 5.0)


def test_one_record_moves_a_gradient_sum_by_the_sensitivity_at_most() -> None:
    features, labels = blobs(30, 3)
    features[0] *= 1e6
    rows, weight = on_grid(with_bias(features)), np.random.Generator(np.random.PCG64(1)).normal(size=(3, 7)) * 20
    whole = clipped_gradient(rows, labels, weight, 0.3)
    moved = [
        np.linalg.norm(whole - clipped_gradient(np.delete(rows, i, 0), np.delete(labels, i), weight, 0.3))
        for i in range(30)
    ]
    assert max(moved) <= PRODUCT and max(moved) > 0.99 * PRODUCT, "bounded, and the bound is tight"


def test_one_record_moves_the_moments_by_the_sensitivity_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[np.ndarray, int]] = []

    def watch(total: np.ndarray, sensitivity: int, sigma: float, entropy: Any) -> np.ndarray:
        seen.append((total.copy(), sensitivity))
        return total

    monkeypatch.setattr(private_linear, "noisy", watch)
    features, labels = blobs(20, 4)
    features[0] *= 1e9

    def clean(keep: np.ndarray) -> np.ndarray:
        seen.clear()
        moments(on_grid(with_bias(features[keep])), labels[keep], 3, Gaussian(1.0), NoNoise())
        return np.concatenate([total.ravel() for total, _ in seen])

    whole = clean(np.arange(20))
    moved = [np.linalg.norm(whole - clean(np.delete(np.arange(20), i))) for i in range(20)]
    (sensitivity,) = {sensitivity for _, sensitivity in seen}
    assert 0.99 * sensitivity < max(moved) <= sensitivity
    assert sensitivity == pytest.approx(math.sqrt(2) * PRODUCT, rel=1e-6)


# noise


@pytest.mark.parametrize("wrong", [1.0, 0.7, 1.3])
def test_noise_has_the_size_that_was_accounted(wrong: float) -> None:
    draws = noisy(np.zeros(20_000), PRODUCT, 2.5 * wrong, SeededEntropy(1)) / (2.5 * PRODUCT)
    close = abs(float((draws**2).mean()) - 1.0) < 0.05
    assert close == (wrong == 1.0)


def test_every_step_and_the_count_get_the_noise_of_the_event(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, float]] = []

    def watch(total: np.ndarray, sensitivity: int, sigma: float, entropy: Any) -> np.ndarray:
        seen.append((sensitivity, sigma))
        return total

    monkeypatch.setattr(private_linear, "noisy", watch)
    settings = LogisticSettings(steps=5, rate=0.5)
    features, labels = blobs(60, 0)
    logistic(on_grid(with_bias(features)), labels, 3, settings, 1.7, SeededEntropy(0))
    gradients, count = parts(settings.event(1.7))
    assert gradients == PoissonGaussian(1.7, 0.5, 5) and isinstance(count, Gaussian)
    assert seen == [(PRODUCT, count.sigma)] + [(PRODUCT, 1.7)] * 5


def test_moments_carry_the_noise_they_state() -> None:
    rows = np.zeros((1, 150))
    released = [moments(rows, np.array([0]), 3, Gaussian(2.0), SeededEntropy(seed)) for seed in range(3)]
    assert released[0].noise == pytest.approx(2.0 * math.sqrt(2.0), rel=1e-6)
    upper = np.triu_indices(150, 1)
    off = np.concatenate([each.second[upper] for each in released])
    diagonal = np.concatenate([np.diag(each.second) for each in released] + [each.sums.ravel() for each in released])
    assert off.std() == pytest.approx(released[0].noise / math.sqrt(2.0), rel=0.05)
    assert diagonal.std() == pytest.approx(released[0].noise, rel=0.1)
    spectral = np.linalg.norm(released[0].second, 2)
    assert private_linear.shrinkage(released[0], 1.0) == pytest.approx(spectral, rel=0.15), "what shrinkage assumes"
    with pytest.raises(ValueError, match="one release"):
        moments(rows, np.array([0]), 3, Gaussian(2.0, releases=2), SeededEntropy(0))


GRADIENTS = PoissonGaussian(5.0, LogisticSettings().rate, LogisticSettings().steps)


def test_full_batches_are_plain_gaussians_and_the_count_is_cheap() -> None:
    mu = gaussian_mu(LogisticSettings(steps=25, rate=1.0).event(10.0))
    assert mu == pytest.approx(5 / 10 * math.sqrt(1.01))
    assert guarantee(LogisticSettings().event(5.0), 1e-5).epsilon < 1.02 * guarantee(GRADIENTS, 1e-5).epsilon


def test_empty_batches_and_one_record_are_legal() -> None:
    features, labels = blobs(3, 0)
    settings = LogisticSettings(steps=4, rate=1e-9)
    weight = logistic(on_grid(with_bias(features)), labels, 3, settings, 1.0, SeededEntropy(0))
    assert weight.shape == (3, 7) and np.isfinite(weight).all() and (weight != 0).any(), "noise all the same"


# classifiers


def test_all_three_learn_and_noise_hurts() -> None:
    (features, labels), (test, truth) = blobs(3000, 5), blobs(600, 6)
    rows, test_rows = on_grid(with_bias(features)), with_bias(test)
    settings = LogisticSettings(steps=30)

    def accuracy(sigma: float) -> dict[str, float]:
        released = moments(rows, labels, 3, Gaussian(sigma), SeededEntropy(1))
        weights = {
            "lda": lda(released),
            "ridge": ridge(released),
            "logistic": logistic(rows, labels, 3, settings, sigma, SeededEntropy(1)),
        }
        return {name: float(((test_rows @ w.T).argmax(1) == truth).mean()) for name, w in weights.items()}

    assert min(accuracy(1.0).values()) > 0.9
    assert max(accuracy(1e4).values()) < 0.75


def test_closed_forms_are_what_their_names_say() -> None:
    features, labels = blobs(900, 7)
    rows = with_bias(features)
    released = moments(on_grid(rows), labels, 3, Gaussian(1e-4), SeededEntropy(0))
    lam = private_linear.shrinkage(released, 0.0)
    targets = 2.0 * np.eye(3)[labels] - 1.0
    expected = np.linalg.solve(rows.T @ rows + lam * np.eye(7), rows.T @ targets).T
    np.testing.assert_allclose(ridge(released, 0.0), expected, atol=0.02)

    x = rows[:, :-1]
    means = np.stack([x[labels == c].mean(0) for c in range(3)])
    within = sum(((x[labels == c] - means[c]).T @ (x[labels == c] - means[c]) for c in range(3)), np.zeros((6, 6)))
    precision = np.linalg.inv((within + lam * np.eye(6)) / 900)
    scores = x @ precision @ means.T - 0.5 * np.einsum("cd,de,ce->c", means, precision, means) + math.log(1 / 3)
    np.testing.assert_allclose(rows @ lda(released, 0.0).T, scores, atol=0.05)
