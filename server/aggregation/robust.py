"""Aggregation by `robust`: as by `precision`, but a silo that says something else than the others has less weight.

It assumes, as `precision` does, that silos look alike, and bounds what one that does not can do. Row r of the sums (a
class, a group of classes, or all) has a centre v, what a record adds to it: coordinate by coordinate the median of the
silos' means, one vote each. Silo s has the noisy sum Y_s over n_s records, and says something else than the others by
R_s = Y_s - n_s v. In an honest silo that looks like the others, |R_s|² is on average at most about

    E_s² = d (σ_s² + n_s² ν²)       noise: its own, and n_s times that of the median, ν² = (π/2) silos / (Σ n/σ)²
         + g² n_s                   sampling: its records are themselves a sample, of norm at most g each
         + g² m (σ_s / weight)²     the noise in its counts, of m classes

Its *trust* is t_s = min(1, 1.5 E_s / |R_s|), the smallest over all rows: one number for the whole silo. The sums are
then combined as by `precision`, with weights t w instead of w. (This is one step of Huber's estimate of a common mean.)
For outer products |·| is the largest singular value, and √d is √rows + √columns: noise is spread over all directions,
so this holds a lie that lies in one of them to much less.

*What one silo can do.* Whatever a bad silo b sends, the mean moves from m, what the others say, by

    t_b w_b (R_b + n_b (v - m)) / Σ t w n,        |t_b R_b| ≤ 1.5 E_b,

and v lies between means of honest silos, as long as fewer than half of those that have the row are bad. So both terms
are of the size of the noise. Counts cannot buy more: those above twice the median of the silos are scaled down, with
the sums beside them. Where fewer than three silos have a row there is no saying who is right, and it is as by
`precision`. A release that agrees with the others within the noise, whoever made it up, keeps its weight.

*What it costs.* With silos that look alike hardly any residual is above 1.5 times its average, and the result is that
of `precision`, to the digit (docs/results/poisoning.txt has what was measured). Silos that really differ are taken for
bad ones: the more records, and the less noise, the smaller the difference that counts. `Statistics.noise` is an upper
bound: trust and capped counts only take noise away.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpdd.common.errors import ConfigError, DpddError
from dpdd.common.privacy.clipping import FIXED_POINT_ONE, Layout, Segment
from dpdd.common.privacy.privatise import in_units
from dpdd.common.synthesis.statistics import Statistics, lost_in_noise
from dpdd.common.wire.release import Release
from dpdd.server.aggregation.base import check_releases, noise_of, released_arrays
from dpdd.server.aggregation.precision import combine, members_of, precision_weights, sampling_variance

Floats = NDArray[np.float64]
Sums = Mapping[str, Floats]

FEWEST = 3
"""Of two silos that disagree, nobody can say which one is right."""
TOLERANCE = 1.5
"""So many times the residual that is to be expected costs no trust."""
LARGEST_SHARE = 2.0
"""A count above so many times the silos' median is scaled down to that."""


@dataclass(frozen=True, eq=False)
class Bounded:
    """The silos' sums with bounded counts, the noise in them, and how far each silo is trusted."""

    sums: Sequence[Sums]
    noise: Sequence[float]
    trust: Floats


def robustly(releases: Sequence[Release], layout: Layout, count_weight: float | None) -> Statistics:
    """The sums over silos, of which none can move the means far; the derivation is at the top."""
    if len(releases) < FEWEST:
        raise DpddError(
            f"aggregation by robust compares silos, which takes the releases of at least {FEWEST}, and there are "
            f"{len(releases)}: wait for more, or aggregate by sum or precision"
        )
    bounded, weight = bound(releases, layout, count_weight)
    return combine(bounded.sums, bounded.noise, layout, weight, bounded.trust)


def without_each(releases: Sequence[Release], layout: Layout, count_weight: float | None) -> list[Statistics]:
    """What is left of the sums without each silo, where the others are trusted as they are with it."""
    bounded, weight = bound(releases, layout, count_weight)
    left = []
    for number in range(len(releases)):
        kept = [other for other in range(len(releases)) if other != number]
        sums, noise = [bounded.sums[other] for other in kept], [bounded.noise[other] for other in kept]
        left.append(combine(sums, noise, layout, weight, bounded.trust[kept]))
    return left


def class_weights(releases: Sequence[Release], layout: Layout, count_weight: float | None) -> Floats:
    """What each silo's sums of each class are multiplied by (silos x classes)."""
    bounded, weight = bound(releases, layout, count_weight)
    before = [released_arrays(release, layout, count_weight)["count"] for release in releases]
    counts = np.stack([each["count"][:, 0] for each in bounded.sums]) / weight
    kept = counts / np.where(counts == 0.0, 1.0, np.stack([in_units(each)[:, 0] for each in before]) / weight)
    sigma = np.asarray(bounded.noise)
    weights: Floats = (
        bounded.trust[:, None]
        * kept
        * precision_weights(counts, sigma, sigma[:, None] / weight, sampling_variance(layout))
    )
    return weights


def bound(releases: Sequence[Release], layout: Layout, count_weight: float | None) -> tuple[Bounded, float]:
    """The sums with bounded counts and their trust, and the weight of a count; IntegrityError for another layout."""
    if count_weight is None:
        raise ConfigError("this method releases no class counts, so nobody's sums can be compared with the others'")
    check_releases(releases, layout)
    noise = [noise_of(release) for release in releases]
    released = [released_arrays(release, layout, count_weight) for release in releases]
    sums = [{name: in_units(array) for name, array in arrays.items()} for arrays in released]
    capped = with_capped_counts(sums, noise, layout, count_weight)
    return Bounded(capped, noise, trust_of(capped, noise, layout, count_weight)), count_weight


def with_capped_counts(sums: Sequence[Sums], noise: Sequence[float], layout: Layout, count_weight: float) -> list[Sums]:
    """The sums, where a silo with far more records of a class than the median of those that have it counts for less."""
    counts = np.stack([each["count"][:, 0] for each in sums]) / count_weight
    scale = np.ones_like(counts)
    lost = lost_in_noise(counts, np.asarray(noise)[:, None] / count_weight)
    for label in range(layout.classes):
        known = np.sort(counts[~lost[:, label], label])
        if len(known) >= FEWEST:
            most = LARGEST_SHARE * known[(len(known) - 1) // 2]
            scale[:, label] = np.minimum(1.0, most / np.maximum(counts[:, label], 1.0))
    capped: list[dict[str, Floats]] = [{} for _ in sums]
    for segment in layout.segments:
        members = members_of(segment, layout.classes)
        before, after = counts @ members.T, (scale * counts) @ members.T
        of_rows = np.clip(np.divide(after, before, out=np.ones_like(after), where=before > 0.0), 0.0, 1.0)
        for each, own, factors in zip(capped, sums, of_rows, strict=True):
            each[segment.name] = own[segment.name] * factors[:, None]
    return list(capped)


def trust_of(sums: Sequence[Sums], noise: Sequence[float], layout: Layout, count_weight: float) -> Floats:
    """How far each silo is trusted, from 0 to 1; the one that is trusted most has 1."""
    sigma = np.asarray(noise, dtype=np.float64)
    counts = np.stack([each["count"][:, 0] for each in sums]) / count_weight
    trust = np.ones(len(sums))
    for segment in layout.segments:
        if segment.name == "count":
            continue
        members = members_of(segment, layout.classes)
        records, count_noise = counts @ members.T, sigma[:, None] * np.sqrt(members.sum(axis=1)) / count_weight
        known = ~lost_in_noise(records, count_noise)
        enough = known.sum(axis=0) >= FEWEST
        if not enough.any():
            continue
        stacked = np.stack([each[segment.name][enough] for each in sums])
        records, count_noise, known = records[:, enough], count_noise[:, enough], known[:, enough]
        heard = precision_weights(records, sigma, count_noise, sampling_variance(layout)) > 0.0
        centre = _median_of_means(stacked, records, known)
        limits = TOLERANCE * _expected(segment, layout, records, sigma, count_noise, known)
        for silo in range(len(sums)):
            norms = _norms(stacked[silo] - records[silo][:, None] * centre, segment, limits[silo])
            within = np.divide(limits[silo], norms, out=np.ones_like(norms), where=norms > limits[silo])
            trust[silo] = min(trust[silo], within[heard[silo]].min(initial=1.0))
    found: Floats = trust / trust.max()
    return found


def _median_of_means(sums: Floats, records: Floats, known: NDArray[np.bool_]) -> Floats:
    """Coordinate by coordinate, over the silos that have the row (rows x width)."""
    means = sums / np.where(known, records, 1.0)[:, :, None]
    if known.all():
        return np.asarray(np.median(means, axis=0))
    median: Floats = np.nanmedian(np.where(known[:, :, None], means, np.nan), axis=0)
    return median


def _expected(
    segment: Segment, layout: Layout, records: Floats, sigma: Floats, count_noise: Floats, known: NDArray[np.bool_]
) -> Floats:
    """E of every silo and row: how far from the centre an honest silo is that looks like the others."""
    reach = segment.norm if segment.factors else layout.plain_clip_norm / FIXED_POINT_ONE
    numbers = sum(math.sqrt(each) for each in segment.factors) ** 2 if segment.factors else segment.width
    several = np.maximum(records, 0.0)
    with np.errstate(divide="ignore"):  # without noise, the median has none either
        certain = np.where(known, several / sigma[:, None], 0.0).sum(axis=0)
    median = 0.5 * math.pi * known.sum(axis=0) / np.square(certain)
    expected: Floats = numbers * (np.square(sigma)[:, None] + np.square(several) * median)
    return np.sqrt(expected + reach**2 * (several + np.square(count_noise)))


def _norms(residuals: Floats, segment: Segment, limits: Floats) -> Floats:
    """The norm of each row; of an outer product its largest singular value, where the norm is beyond the limit."""
    norms: Floats = np.sqrt(np.einsum("rw,rw->r", residuals, residuals))
    if segment.factors is None or norms[0] <= limits[0]:
        return norms
    matrix = residuals.reshape(segment.factors)
    gram = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    try:
        np.linalg.cholesky(np.diag(np.full(len(gram), limits[0] ** 2)) - gram)
    except np.linalg.LinAlgError:
        return np.array([math.sqrt(max(float(np.linalg.eigvalsh(gram)[-1]), 0.0))])
    return limits  # at most, and ten times as fast
