"""DP-CDA: noisy mixtures become records. All of it is post-processing of the released sums."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpdd.common.methods.base import DataKind, RunDescription
from dpdd.common.methods.dp_cda.settings import COUNT, MIXTURE, MixingSettings, MixtureSynthesisSettings
from dpdd.common.methods.dp_cda.specification import count_weight, norm, width
from dpdd.common.randomness import gaussians, uniforms
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.statistics import Statistics, lost_in_noise

Floats = NDArray[np.float64]


def synthesise(
    statistics: Statistics, settings: MixingSettings, synthesis: MixtureSynthesisSettings, run: RunDescription
) -> LabelledSet:
    """A record per mixture, `images_per_class` at most; of a class that is lost in noise, grey or random ones."""
    mixtures = class_mixtures(statistics, settings, len(run.classes))
    means, known = mixtures.means, mixtures.known
    if synthesis.denoise:
        means[:, known] = denoised(means[:, known], mixtures.noise[known])
    if synthesis.spread == "records":
        centres, order = means.mean(axis=0), np.maximum(mixtures.order, 1.0)
        means = centres + np.sqrt(order)[None, :, None] * (means - centres)
    kept = means[: run.images_per_class] * norm(settings, run)
    labels = np.tile(np.arange(len(run.classes)), len(kept))
    order = np.argsort(labels, kind="stable")
    flat, labels = kept.reshape(-1, width(run))[order], noisy_labels(labels[order], synthesis.label_noise, run)
    if run.kind is DataKind.IMAGE:
        pixels = np.rint(255.0 * np.clip(flat + settings.centre, 0.0, 1.0)).astype(np.uint8)
        return LabelledSet(pixels.reshape(-1, *run.shape), labels, run.classes)
    return LabelledSet(rows(flat, run), labels, run.classes, schema=run.table)


def noisy_labels(labels: NDArray[np.int64], deviation: float, run: RunDescription) -> NDArray[np.int64]:
    """The largest of a one-hot label with Gaussian noise, as in the paper; the labels as they are without any."""
    if not deviation:
        return labels
    hot = np.eye(len(run.classes))[labels]
    found: NDArray[np.int64] = (hot + deviation * gaussians(run.public_seed, "dp-cda labels", hot.shape)).argmax(axis=1)
    return found


@dataclass(frozen=True, eq=False)
class ClassMixtures:
    """Mean points (mixtures, classes, width), the deviation of the noise in those of each class, how many records they
    have on average, and which classes are not lost in noise; of a class that is, all are 0.
    """

    means: Floats
    noise: Floats
    order: Floats
    known: NDArray[np.bool_]


def class_mixtures(statistics: Statistics, settings: MixingSettings, classes: int) -> ClassMixtures:
    """Sums divided by the expected order, from the noisy counts."""
    counts = statistics.sums[COUNT][:, 0]
    known = ~lost_in_noise(counts, statistics.noise)
    order = np.maximum(counts / count_weight(settings), 1.0) * settings.rate
    weight = math.sqrt(1.0 - settings.count_share**2) * order
    sums = statistics.sums[MIXTURE].reshape(settings.mixtures_per_class, classes, -1)
    means = np.where(known[None, :, None], sums / weight[None, :, None], 0.0)
    return ClassMixtures(means, np.where(known, statistics.noise / weight, 0.0), np.where(known, order, 0.0), known)


def denoised(means: Floats, noise: Floats) -> Floats:
    """Each mixture's deviation from the mean of its class, in the directions in which all mixtures together vary by
    more than noise would alone.

    Of n deviations in D dimensions noise of variance 1 has principal variances up to (1 + √(D/n))² (Marchenko and
    Pastur 1967). Directions above are shrunk by the noise's part in them; the others are left out.
    """
    mixtures, classes, dimensions = means.shape
    count = (mixtures - 1) * classes
    if count < 1 or not (noise > 0.0).all():
        return means
    centres = means.mean(axis=0)
    deviations = ((means - centres) / noise[None, :, None]).reshape(-1, dimensions)
    edge = (1.0 + math.sqrt(dimensions / count)) ** 2
    if dimensions <= len(deviations):
        variances, directions = np.linalg.eigh(deviations.T @ deviations / count)
        above = variances > edge
        directions = directions[:, above].T
    else:
        variances, weights = np.linalg.eigh(deviations @ deviations.T / count)
        above = variances > edge
        directions = (weights[:, above] / np.sqrt(count * variances[above])).T @ deviations
    kept = 1.0 - 1.0 / variances[above]
    smooth = ((deviations @ directions.T) * kept) @ directions
    return centres + smooth.reshape(means.shape) * noise[None, :, None]


def rows(cells: Floats, run: RunDescription) -> NDArray[np.float32]:
    """A row of codes for each mixture: in each column a value, drawn with the mixture's noisy shares."""
    drawn = uniforms(run.public_seed, "dp-cda rows", len(cells) * len(run.columns)).reshape(len(cells), -1)
    found, start = np.zeros((len(cells), len(run.columns)), np.float32), 0
    for at, column in enumerate(run.columns):
        shares = np.maximum(cells[:, start : start + column.size], 0.0)
        totals = shares.sum(axis=1, keepdims=True)
        shares = np.where(totals > 0.0, shares / np.where(totals > 0.0, totals, 1.0), 1.0 / column.size)
        above = drawn[:, at, None] >= np.cumsum(shares, axis=1)
        found[:, at] = np.minimum(above.sum(axis=1), column.size - 1)
        start += column.size
    return found
