"""Linear classifiers of public features that several silos make together: class statistics once, or DP-FedAvg.

Rows are those of `private_linear`: norm 1, on a grid, products of two in steps of 1 / `PRODUCT`. Neighbours: one
labelled record of one silo added or removed; each silo adds the noise that its own guarantee needs, so that a sum over
K silos has √K times the noise of one.

- *summed moments*: every silo releases `private_linear.moments`; their sums go into `lda` and `ridge`.
- *FedPFT*, in the manner of Beitollahi et al. 2024: per class the sum of rows and of their squares, in one Gaussian;
  the coordinator draws features from a diagonal Gaussian of each class and trains logistic regression on these. A
  record adds (row, row²) to its class, and |row²| is at most |row|², so its norm is √2 at most. The authors fit
  mixtures in every silo, send each by itself and take class counts as public; here sums of silos are added up, and a
  class's count is what the noisy constant coordinate says.
- *DP-FedAvg*: rounds of noisy gradient steps at each silo, as in `private_linear.logistic`, and an average of weights.
  A silo's event is all of its steps in all rounds, and one noisy count of its records, by which it divides and weighs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.events import Gaussian
from dpdd.common.privacy.sampling import poisson_sample
from dpdd.common.progress import Progress, silent
from dpdd.scenarios.baselines.base import Positions
from dpdd.scenarios.baselines.private_linear import (
    BIAS,
    PRODUCT,
    UNIT,
    LogisticSettings,
    Moments,
    clipped_gradient,
    moments,
    noisy,
)


class FederatedLogisticSettings(LogisticSettings):
    """DP-FedAvg of a linear classifier: `steps` of every silo in all, `local_steps` of them in each round."""

    local_steps: Annotated[int, Field(ge=1)] = 5
    average: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5


def summed_moments(
    rows: NDArray[np.float64],
    labels: NDArray[np.int64],
    shares: Sequence[Positions],
    classes: int,
    event: Gaussian,
    entropy: Entropy,
) -> Moments:
    """The moments of all silos, each with noise of its own, added up."""
    each = [moments(rows[share], labels[share], classes, event, entropy) for share in shares]
    second: NDArray[np.float64] = sum((one.second for one in each[1:]), each[0].second)
    sums: NDArray[np.float64] = sum((one.sums for one in each[1:]), each[0].sums)
    return Moments(sums, second, each[0].noise * math.sqrt(len(each)))


def class_gaussians(
    rows: NDArray[np.float64],
    labels: NDArray[np.int64],
    shares: Sequence[Positions],
    classes: int,
    event: Gaussian,
    entropy: Entropy,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Noisy class sums of all silos' rows and of their squares, each (classes, D) and in units of a row."""
    if event.releases != 1:
        raise ValueError("class statistics are one release; compose events to account for several")
    sensitivity = math.isqrt(2 * PRODUCT**2) + 1
    total = np.zeros((2, classes, rows.shape[1]))
    for share in shares:
        own = np.zeros_like(total)
        for label in range(classes):
            mine = rows[share[labels[share] == label]]
            own[0, label], own[1, label] = mine.sum(axis=0) * UNIT, np.square(mine).sum(axis=0)
        total += noisy(own, sensitivity, event.sigma, entropy) / PRODUCT
    return total[0], total[1]


def drawn_features(
    sums: NDArray[np.float64], squares: NDArray[np.float64], per_class: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """`per_class` features of each class from its diagonal Gaussian, the constant coordinate left out."""
    counts = np.maximum(sums[:, -1] / (BIAS / math.hypot(1.0, BIAS)), 1.0)[:, None]
    means, variances = sums[:, :-1] / counts, squares[:, :-1] / counts
    deviations = np.sqrt(np.clip(variances - means**2, 1e-4 / means.shape[1], 1.0))
    drawn = np.random.Generator(np.random.PCG64(seed)).normal(size=(len(sums), per_class, means.shape[1]))
    labels = np.repeat(np.arange(len(sums)), per_class)
    return (means[:, None] + deviations[:, None] * drawn).reshape(-1, means.shape[1]), labels


def federated_logistic(
    rows: NDArray[np.float64],
    labels: NDArray[np.int64],
    shares: Sequence[Positions],
    classes: int,
    settings: FederatedLogisticSettings,
    sigma: float,
    entropy: Entropy,
    progress: Progress = silent,
) -> NDArray[np.float64]:
    """Weights (classes, D) after all rounds, averaged over the last of them; each silo's cost is `settings.event`."""
    counts = []
    for share in shares:
        records = np.array([float(len(share) * PRODUCT)])
        count = noisy(records, PRODUCT, sigma * settings.count_noise, entropy)[0] / PRODUCT
        counts.append(max(1.0, float(count)))
    weighed = np.array(counts) / sum(counts)
    rounds = max(1, settings.steps // settings.local_steps)
    weight, total = np.zeros((classes, rows.shape[1])), np.zeros((classes, rows.shape[1]))
    velocities = [np.zeros_like(weight) for _ in shares]
    kept = max(1, round(rounds * settings.average))
    for number in range(rounds):
        arrived = []
        for at, share in enumerate(shares):
            unit = settings.clip / PRODUCT / max(1.0, counts[at] * settings.rate)
            local = weight
            for _ in range(settings.local_steps):
                pick = share[poisson_sample(len(share), settings.rate, entropy)]
                gradient = noisy(
                    clipped_gradient(rows[pick], labels[pick], local, settings.clip), PRODUCT, sigma, entropy
                )
                velocities[at] = settings.momentum * velocities[at] + gradient
                local = local - settings.learning_rate * rows.shape[1] * unit * velocities[at]
            arrived.append(local)
        weight = np.tensordot(weighed, np.stack(arrived), axes=1)
        if number >= rounds - kept:
            total += weight
        progress("DP-FedAvg of a head", number + 1, rounds)
    return np.asarray(total / kept)
