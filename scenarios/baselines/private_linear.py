"""Linear classifiers of public features under differential privacy: DP-SGD, LDA and ridge regression.

Neighbours: one labelled record added or removed. The number of records and the class counts are private; the class
list, the backbone and all settings are public.

Sensitivity. Each record's feature vector, with a constant appended for the bias, is clipped to norm 1 and put on a
grid of `UNIT` steps per unit, rounding towards zero (`clip_to_grid`), so that its integer norm is at most `UNIT`. All
that is summed is made of products of such vectors: a gradient of the logistic loss is (residual) ⊗ (features), a
record's share of the second moment is (features) ⊗ (features). The norm of such a product is the product of the norms,
at most `PRODUCT`, in exact arithmetic; sums of integers below 2^53 are exact in float64; noise is a discrete Gaussian.

- `logistic`: `steps` noisy gradients of Poisson-sampled (or all) records, and one noisy count of the records.
- `moments`: one Gaussian over class sums and the second moment; `lda` and `ridge` are post-processing of it.

Simulations only: each call gets the records, and gives something that carries its noise.

>>> from dpdd.common.privacy.entropy import SeededEntropy
>>> from dpdd.common.privacy.events import Gaussian
>>> rows, labels = with_bias(np.repeat(np.eye(2), 500, axis=0)), np.repeat([0, 1], 500)
>>> released = moments(on_grid(rows), labels, 2, Gaussian(sigma=4.0), SeededEntropy(1))
>>> [(rows @ weight.T).argmax(axis=1).tolist() == labels.tolist() for weight in (lda(released), ridge(released))]
[True, True]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dpdd.common.config import Settings
from dpdd.common.privacy import discrete_gaussian
from dpdd.common.privacy.clipping import FIXED_POINT_BITS, Layout, clip_to_grid, global_segment
from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.events import Event, Gaussian, PoissonGaussian, compose
from dpdd.common.privacy.sampling import poisson_sample
from dpdd.common.progress import Progress, silent

UNIT_BITS = 13
UNIT = 1 << UNIT_BITS
"""Grid steps per unit of one factor; a product of two has `PRODUCT` steps per unit."""
PRODUCT = UNIT * UNIT
"""Sums of up to 2^27 products are exact in float64."""

BIAS = 0.3
"""The appended coordinate, where the others have norm 1."""

_CHUNK = 4096


class LogisticSettings(Settings):
    """DP-SGD for multinomial logistic regression.

    `learning_rate` is per dimension D, as the second moment of whitened rows of norm 1 is 1/D; `average` is the share
    of the iterates, counted from the end, whose mean is the result.
    """

    steps: Annotated[int, Field(ge=1)] = 300
    rate: Annotated[float, Field(gt=0.0, le=1.0)] = 0.1
    learning_rate: Annotated[float, Field(gt=0.0)] = 1.0
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    clip: Annotated[float, Field(gt=0.0)] = 0.3
    average: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5

    @property
    def count_noise(self) -> float:
        """Noise of the number of records, in the σ of a gradient: so much that it costs about 1 % of the budget."""
        return min(max(1.0, 10.0 / (self.rate * math.sqrt(self.steps))), 1000.0)

    def event(self, sigma: float) -> Event:
        """What `logistic` releases: the gradients, and the number of records."""
        steps = Gaussian(sigma, self.steps) if self.rate == 1.0 else PoissonGaussian(sigma, self.rate, self.steps)
        return compose(steps, Gaussian(sigma * self.count_noise))


@dataclass(frozen=True, eq=False)
class Moments:
    """Noisy class sums (classes, D) and second moment (D, D), and the standard deviation that was added to both."""

    sums: NDArray[np.float64]
    second: NDArray[np.float64]
    noise: float


def with_bias(features: NDArray[np.floating]) -> NDArray[np.float64]:
    """Features scaled to norm 1, with `BIAS` appended, to norm 1 again; odd rows become the bias alone."""
    values = np.asarray(features, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.linalg.norm(values, axis=1, keepdims=True)
    rows = np.zeros((len(values), values.shape[1] + 1))
    np.divide(values, norms, out=rows[:, :-1], where=np.isfinite(norms) & (norms > 0.0))
    rows[:, -1] = BIAS
    return np.asarray(rows / math.hypot(1.0, BIAS))


def on_grid(rows: NDArray[np.floating]) -> NDArray[np.float64]:
    """Each row clipped to norm 1, in whole steps of 1 / `UNIT`: integers whose norm is at most `UNIT`."""
    layout = Layout((global_segment("row", rows.shape[1], classes=1),))
    out = np.empty(rows.shape)
    for start in range(0, len(rows), _CHUNK):
        part = rows[start : start + _CHUNK]
        fine = clip_to_grid(part, np.zeros(len(part), dtype=np.int64), layout)
        out[start : start + _CHUNK] = np.trunc(fine / 2.0 ** (FIXED_POINT_BITS - UNIT_BITS))
    return out


def noisy(total: NDArray[np.float64], sensitivity: int, sigma: float, entropy: Entropy) -> NDArray[np.float64]:
    """Whole numbers plus discrete Gaussian noise of `sigma` times their integer `sensitivity`."""
    exact = total.astype(np.int64)
    scale = discrete_gaussian.scale_for(sigma * sensitivity)
    return (exact + discrete_gaussian.sample(scale, exact.size, entropy).reshape(exact.shape)).astype(np.float64)


def clipped_gradient(
    rows: NDArray[np.float64], labels: NDArray[np.int64], weight: NDArray[np.float64], clip: float
) -> NDArray[np.float64]:
    """The sum over records of their clipped gradients of the logistic loss, in steps of `clip` / `PRODUCT`.

    `rows` are on the grid. A gradient is (p - y) ⊗ row, and a row's norm is at most 1, so that clipping the residual
    p - y to norm `clip` clips the gradient to it: its norm is known without ever making it.
    """
    logits = rows @ (weight.T / UNIT)
    residual = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
    residual /= residual.sum(axis=1, keepdims=True)
    residual[np.arange(len(rows)), labels] -= 1.0
    return np.asarray(on_grid(residual / clip).T @ rows)


def logistic(
    rows: NDArray[np.float64],
    labels: NDArray[np.int64],
    classes: int,
    settings: LogisticSettings,
    sigma: float,
    entropy: Entropy,
    progress: Progress = silent,
) -> NDArray[np.float64]:
    """Weights (classes, D) by noisy gradient descent on the rows of `on_grid`; costs `settings.event(sigma)`.

    Gradients are divided by the noisy number of records times the rate, never by the size of a batch.
    """
    records = np.array([float(len(rows) * PRODUCT)])
    count = noisy(records, PRODUCT, sigma * settings.count_noise, entropy)[0] / PRODUCT
    unit = settings.clip / PRODUCT / max(1.0, count * settings.rate)
    step_size = settings.learning_rate * rows.shape[1] * unit
    weight = np.zeros((classes, rows.shape[1]))
    velocity, total = np.zeros_like(weight), np.zeros_like(weight)
    kept = max(1, round(settings.steps * settings.average))
    for step in range(settings.steps):
        pick = poisson_sample(len(rows), settings.rate, entropy)
        gradient = clipped_gradient(rows[pick], labels[pick], weight, settings.clip)
        velocity = settings.momentum * velocity + noisy(gradient, PRODUCT, sigma, entropy)
        weight = weight - step_size * velocity
        if step >= settings.steps - kept:
            total += weight
        progress("noisy gradient descent", step + 1, settings.steps)
    return np.asarray(total / kept)


def moments(
    rows: NDArray[np.float64], labels: NDArray[np.int64], classes: int, event: Gaussian, entropy: Entropy
) -> Moments:
    """One release: each record adds its row to its class's sum, and row ⊗ row to the second moment.

    In steps of 1 / `PRODUCT` each of the two has norm `PRODUCT` at most, so both together √2 times that. All D² entries
    get noise of their own; averaging (i, j) with (j, i) afterwards halves its variance off the diagonal.
    """
    if event.releases != 1:
        raise ValueError("the moments are one release; compose events to account for several")
    sums = np.stack([rows[labels == label].sum(axis=0) for label in range(classes)]) * UNIT
    sensitivity = math.isqrt(2 * PRODUCT**2) + 1
    noisy_sums = noisy(sums, sensitivity, event.sigma, entropy) / PRODUCT
    second = noisy(rows.T @ rows, sensitivity, event.sigma, entropy) / PRODUCT
    return Moments(noisy_sums, (second + second.T) / 2.0, event.sigma * sensitivity / PRODUCT)


def ridge(released: Moments, strength: float = 0.2) -> NDArray[np.float64]:
    """Weights of least squares on targets ±1, in closed form; `shrinkage` is added to the second moment."""
    amount = shrinkage(released, strength)
    values, vectors = np.linalg.eigh(released.second)
    targets = 2.0 * released.sums - released.sums.sum(axis=0)
    return np.asarray((targets @ vectors / np.maximum(values + amount, amount)) @ vectors.T)


def lda(released: Moments, strength: float = 0.1) -> NDArray[np.float64]:
    """Weights of linear discriminant analysis: class means, priors, and one covariance with `shrinkage` added."""
    constant = BIAS / math.hypot(1.0, BIAS)  # what each record added to the last coordinate of its class
    counts = np.maximum(released.sums[:, -1] / constant, 1.0)
    means = released.sums[:, :-1] / counts[:, None]
    values, vectors = np.linalg.eigh(released.second[:-1, :-1] - (means.T * counts) @ means)
    covariance = (np.maximum(values, 0.0) + shrinkage(released, strength)) / counts.sum()
    weight = (means @ vectors / covariance) @ vectors.T
    offset = np.log(counts / counts.sum()) - 0.5 * (weight * means).sum(axis=1)
    return np.c_[weight, offset / constant]


def shrinkage(released: Moments, strength: float) -> float:
    """What goes onto the diagonal: `strength` x the spectral norm of the noise, and a little where there is none.

    The symmetrised noise is a Gaussian ensemble of spectral norm noise · √(2D).
    """
    dimension = len(released.second)
    mean_eigenvalue = max(float(np.trace(released.second)) / dimension, 1e-9)
    return max(strength * released.noise * math.sqrt(2.0 * dimension), 1e-3 * mean_eigenvalue)
