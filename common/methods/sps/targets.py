"""What the feature statistics of a synthetic batch should be, and how far they are from it: SPS, eq. 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from dpdd.common.methods.sps.feature_statistics import THUMBNAIL, FeatureStatistics, Statistic, unpack
from dpdd.common.methods.sps.gaussian_fit import Gaussians, divergence, fit
from dpdd.common.synthesis.statistics import Statistics


def counts_of(statistics: Statistics, spec: FeatureStatistics) -> tuple[Tensor, Tensor]:
    """Noisy class counts (floored at 1), and which of them stand out of the noise."""
    counts = torch.from_numpy(statistics.sums["count"][:, 0] / spec.count_weight)
    return counts.clamp_min(1.0), counts > 2.0 * statistics.noise / spec.count_weight


def targets(
    statistics: Sequence[Statistics],
    specs: Sequence[FeatureStatistics],
    gamma: float,
    look: FeatureStatistics | None = None,
) -> dict[str, Gaussians]:
    """The released Gaussians of every statistic of `look` (left out: the first spec).

    A statistic's mean is over all stages that looked at the same thing, each weighed by its precision.
    """
    gaussians, look = {}, look or specs[0]
    for statistic in look.statistics:
        means, weights = [], []
        for stage, spec in zip(statistics, specs, strict=True):
            if statistic.place != THUMBNAIL and spec.turn != look.turn:
                continue
            counts, _ = counts_of(stage, spec)
            member = membership(statistic, spec).double()
            sums = torch.from_numpy(stage.sums[statistic.name]) / spec.weights[statistic.name]
            if "rows" in stage.stage_input:
                place = spec.columns[statistic.name]
                sums = sums + member @ (
                    counts[:, None] * torch.from_numpy(stage.stage_input["rows"])[:, place].double()
                )
            means.append(sums / (member @ counts)[:, None])
            weights.append((spec.weights[statistic.name] / stage.noise) ** 2 if stage.noise else 1.0)
        shares = torch.tensor(weights, dtype=torch.float64) / sum(weights)
        average = torch.einsum("s,sij->ij", shares, torch.stack(means))
        seen = (membership(statistic, look).double() @ counts_of(statistics[0], specs[0])[1].double()) > 0
        gaussians[statistic.name] = _single(fit(*unpack(average, statistic.dimensions), seen, gamma))
    return gaussians


def membership(statistic: Statistic, spec: FeatureStatistics) -> Tensor:
    """Which classes (columns) are added to which rows of the sum: 0 or 1."""
    segment = next(s for s in spec.layout.segments if s.name == statistic.name)
    member = torch.zeros(segment.rows, spec.classes)
    for label, rows in enumerate(segment.rows_of):
        member[list(rows), label] = 1.0
    return member


def _single(fitted: Gaussians) -> Gaussians:
    return Gaussians(fitted.means.float(), fitted.covariances.float(), fitted.jitters.float(), fitted.known)


def mismatch(
    vectors: Tensor, labels: Tensor, spec: FeatureStatistics, wanted: Mapping[str, Gaussians], class_weight: float
) -> Tensor:
    """The SPS objective (eq. 2): KL of released Gaussians to the batch's, global plus `class_weight` × class part."""
    one_hot = functional.one_hot(labels, spec.classes).to(vectors)
    loss = vectors.new_zeros(())
    for scope, weight in (("global", 1.0), ("some", class_weight)):
        parts = []
        for statistic in spec.statistics:
            if (statistic.scope == "global") == (scope == "global"):
                picked = membership(statistic, spec).to(vectors) @ one_hot.T
                share = picked / picked.sum(1, keepdim=True).clamp_min(1.0)
                moved = share @ (vectors[:, spec.columns[statistic.name]] / spec.weights[statistic.name])
                losses = divergence(wanted[statistic.name], *unpack(moved, statistic.dimensions))
                parts.append(losses.sum() / max(len(losses), 1))  # none where all classes are lost in the noise
        if parts and weight:
            loss = loss + weight * torch.stack(parts).mean()
    return loss
