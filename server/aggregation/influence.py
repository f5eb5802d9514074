"""How much each silo moved the result, for the card: from sums and counts alone, without any synthesis.

*Share*: of all that a class is made of, how much comes from the silo, by noisy counts and the rule's weights; or, where
silos sent finished sets, of the images of the class.

*Moved*: the statistics per record (sums over counts) as they are, less what they would be without the silo, in norm:
relative to their own norm, and in units of their noise. Of equal silos that differ by noise alone, each moves the
result by 1 / √(silos - 1) of its noise. Much more is a silo that says something else, or most of what is said.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdd.common.privacy.clipping import Layout
from dpdd.common.privacy.privatise import in_units
from dpdd.common.synthesis.statistics import Statistics
from dpdd.common.wire.release import Release
from dpdd.server.aggregation.base import AggregationRule, released_arrays

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Influence:
    """Of one silo, on one stage: its share of each class (none where nobody counts), and what it moved (None: all)."""

    silo: str
    shares: Mapping[str, float]
    in_noise: float | None = None
    relative: float | None = None


def of_sums(
    releases: Sequence[Release],
    layout: Layout,
    weight: float | None,
    rule: AggregationRule,
    total: Statistics,
    classes: Sequence[str],
) -> list[Influence]:
    """The influence of each release on the `total` that the rule makes of them."""
    shares: list[Mapping[str, float]] = [{} for _ in releases]
    if weight is not None:
        counts = [in_units(released_arrays(release, layout, weight)["count"])[:, 0] for release in releases]
        known = np.maximum(np.stack(counts), 0.0)
        weights = np.ones_like(known) if rule.weights is None else rule.weights(releases, layout, weight)
        shares = of_counts(weights * known, classes)
    if len(releases) < 2:
        return [Influence(release.silo, share) for release, share in zip(releases, shares, strict=True)]
    if rule.without_each is not None:
        left = rule.without_each(releases, layout, weight)
    else:
        others = [[*releases[:number], *releases[number + 1 :]] for number in range(len(releases))]
        left = [rule.apply(rest, layout, weight) for rest in others]
    moved = [_moved(total, each, weight) for each in left]
    return [Influence(release.silo, share, *move) for release, share, move in zip(releases, shares, moved, strict=True)]


def of_counts(counts: Floats, classes: Sequence[str]) -> list[Mapping[str, float]]:
    """Each silo's share of each class (silos x classes); classes that nobody has are left out."""
    total = counts.sum(axis=0)
    return [
        {name: float(row[label] / total[label]) for label, name in enumerate(classes) if total[label] > 0.0}
        for row in counts
    ]


def _moved(total: Statistics, left: Statistics, weight: float | None) -> tuple[float | None, float | None]:
    """How far the statistics per record are from those without a silo: in units of their noise, and of their norm."""
    per_record = [1.0 / _records(each, weight) for each in (total, left)]
    squares, norm, numbers = 0.0, 0.0, 0
    for name, sums in total.sums.items():
        if name == "count":
            continue
        difference = per_record[0] * sums - per_record[1] * left.sums[name]
        squares += float(np.vdot(difference, difference))
        norm += float(np.vdot(sums, sums))
        numbers += sums.size
    noise = total.noise * per_record[0] * math.sqrt(numbers)
    length = math.sqrt(norm) * per_record[0]
    return (
        math.sqrt(squares) / noise if noise > 0.0 else None,
        math.sqrt(squares) / length if length > 0.0 else None,
    )


def _records(statistics: Statistics, weight: float | None) -> float:
    """How many records the sums are of; as many as silos, where nobody counts."""
    if weight is None:
        return float(statistics.silos)
    return max(float(statistics.sums["count"].sum()) / weight, 1.0)


def rows(stages: Iterable[Sequence[Influence]]) -> list[dict[str, Any]]:
    """What `metrics.json` and the card say of each silo: the shares of its first stage, and the most that it moved."""
    found: dict[str, dict[str, Any]] = {}
    for stage in stages:
        for each in stage:
            row = found.setdefault(each.silo, {"silo": each.silo, "shares": {}, "in_noise": None, "relative": None})
            row["shares"] = row["shares"] or {name: round(share, 4) for name, share in each.shares.items()}
            for key, value in (("in_noise", each.in_noise), ("relative", each.relative)):
                if value is not None:
                    row[key] = max(row[key] or 0.0, float(f"{value:.4g}"))
    return [found[silo] for silo in sorted(found)]
