"""Aggregation by `precision`: silos are weighed by their noise and size (inverse-variance weighting).

`precision` assumes that silos look alike, and gives the common means with the least variance. Silo s has in row r (a
class, or a group of classes) a noisy sum Y_s over n_s records, noise σ_s in every entry. Its mean Y_s / n_s has the
variance

    σ_s² / n_s² + τ² / n_s        noise, and sampling: the records of a silo are themselves a sample,

where τ² = 1 / width bounds the variance of the average coordinate, because a contribution has norm at most 1. Means
combine best by inverse variance, Σ p_s (Y_s / n_s) / Σ p_s with p_s = n_s² / (σ_s² + τ² n_s), which is a weighted sum
of the sums:

    Σ w_s Y_s / Σ w_s n_s,        w_s = n_s / (σ_s² + τ² n_s).

Equal silos get equal weights, and without noise every weight is the same: then `precision` is `sum`.

Sums and counts of a row may be scaled together without changing the mean. They are scaled so that the noise in every
entry of a class's row is what it is in the plain sum, √Σσ_s²: `Statistics.noise` stays true, and a class's count is
an *effective* one, the number of records that would give such a mean at such noise. (Rows for several classes are
scaled to the effective counts of their classes, so that sum / counts is their mean; their noise is as stated where
silos have the same class mix, and at most about √silos times that otherwise.)

The n_s are the silos' noisy counts, at least 1. A silo whose count is lost in its noise is left out of that row,
unless the lost silos together have a count that is not: many small silos count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dpdd.common.errors import ConfigError
from dpdd.common.privacy.clipping import Layout, Segment
from dpdd.common.privacy.privatise import in_units
from dpdd.common.synthesis.statistics import Statistics, lost_in_noise
from dpdd.common.wire.release import Release
from dpdd.server.aggregation.base import check_releases, noise_of, released_arrays

Floats = NDArray[np.float64]


def by_precision(releases: Sequence[Release], layout: Layout, count_weight: float | None) -> Statistics:
    """The sums whose means have the least variance when silos look alike; the derivation is at the top."""
    if count_weight is None:
        raise ConfigError("this method releases no class counts, so its sums cannot be weighed by precision")
    check_releases(releases, layout)
    released = [released_arrays(release, layout, count_weight) for release in releases]
    sums = [{name: in_units(array) for name, array in arrays.items()} for arrays in released]
    return combine(sums, [noise_of(release) for release in releases], layout, count_weight)


def combine(
    sums: Sequence[Mapping[str, Floats]],
    noise: Sequence[float],
    layout: Layout,
    count_weight: float,
    trust: Floats | None = None,
) -> Statistics:
    """`by_precision` on bare arrays: the sums of each silo, and the noise in them.

    With `trust`, a number up to 1 for each silo, its weights are multiplied by that: then the noise is at most as
    stated.
    """
    shape = {segment.name: (segment.rows, segment.width) for segment in layout.segments}.get("count")
    if shape != (layout.classes, 1):
        raise ConfigError("sums are weighed by precision where a segment 'count' has one count per class")
    sigma = np.asarray(noise, dtype=np.float64)
    total_noise = float(np.sqrt(np.square(sigma).sum()))
    counts = np.stack([each["count"][:, 0] for each in sums]) / count_weight
    sampling = sampling_variance(layout)
    trusted = np.ones((len(sums), 1)) if trust is None else trust[:, None]
    own = trusted * precision_weights(counts, sigma, sigma[:, None] / count_weight, sampling)
    effective = (own * counts).sum(axis=0)
    combined: dict[str, Floats] = {}
    for segment in layout.segments:
        members = members_of(segment, layout.classes)
        spread = np.sqrt(members.sum(axis=1)) / count_weight
        in_rows = counts @ members.T
        weights = trusted * precision_weights(in_rows, sigma, sigma[:, None] * spread, sampling)
        weighed, wanted = (weights * in_rows).sum(axis=0), members @ effective
        clear = ~lost_in_noise(weighed, total_noise * spread) & (wanted > 0.0)
        scale = np.divide(wanted, weighed, out=np.ones_like(wanted), where=clear)
        stacked = np.stack([each[segment.name] for each in sums])
        combined[segment.name] = np.einsum("sr,srw->rw", weights * scale, stacked)
    return Statistics(combined, total_noise, len(sums))


def class_weights(releases: Sequence[Release], layout: Layout, count_weight: float | None) -> Floats:
    """What each silo's sums of each class are multiplied by (silos x classes)."""
    assert count_weight is not None
    counts = [in_units(released_arrays(release, layout, count_weight)["count"])[:, 0] for release in releases]
    sigma = np.array([noise_of(release) for release in releases])
    noise = sigma[:, None] / count_weight
    return precision_weights(np.stack(counts) / count_weight, sigma, noise, sampling_variance(layout))


def sampling_variance(layout: Layout) -> float:
    """A bound of the variance of an average coordinate of a record's contribution, τ² at the top."""
    return 1.0 / sum(segment.width for segment in layout.segments)


def precision_weights(counts: Floats, sigma: Floats, count_noise: Floats, sampling: float) -> Floats:
    """What each silo's sums are multiplied by in each row (silos x rows): all 1 where silos are equal.

    Noise of σ_s in every silo's sums becomes √Σσ_s² in the weighted sum, as in the plain one.
    """
    lost = lost_in_noise(counts, count_noise)
    apart = np.sqrt(np.where(lost, np.square(count_noise), 0.0).sum(axis=0))
    used = ~(lost & lost_in_noise(np.where(lost, counts, 0.0).sum(axis=0), apart))
    floored = np.maximum(counts, 1.0)
    variance = np.square(sigma)[:, None]
    weights = np.where(used, floored / (variance + sampling * floored), 0.0)
    weights[:, ~used.any(axis=0)] = 1.0  # nobody has it: the plain sum, which synthesis finds lost in noise
    noise = np.sqrt((np.square(weights) * variance).sum(axis=0))
    average = weights.sum(axis=0) / (weights > 0.0).sum(axis=0)
    scaled: Floats = weights * np.where(
        noise > 0.0, np.sqrt(variance.sum()) / np.where(noise > 0.0, noise, 1.0), 1.0 / average
    )
    return scaled


def members_of(segment: Segment, classes: int) -> Floats:
    """Which classes are added to which row (rows x classes)."""
    members = np.zeros((segment.rows, classes))
    for label, rows in enumerate(segment.rows_of):
        members[list(rows), label] = 1.0
    return members
