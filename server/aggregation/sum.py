"""Aggregation by `sum`: the silos' sums are added, in exact integers.

Unbiased for the union of the records, whatever the silos hold. Noise variances add, so one silo with a small ε
dominates the noise of the total.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpdd.common.errors import IntegrityError
from dpdd.common.privacy.clipping import Layout
from dpdd.common.privacy.privatise import in_units
from dpdd.common.synthesis.statistics import Statistics
from dpdd.common.wire.release import Release
from dpdd.server.aggregation.base import check_releases, noise_of, released_arrays


def add_up(releases: Sequence[Release], layout: Layout, count_weight: float | None = None) -> Statistics:
    """The plain sum over silos: unbiased for the union of their records."""
    check_releases(releases, layout)
    totals: dict[str, NDArray[np.int64]] = {}
    magnitude: dict[str, int] = {}
    for release in releases:
        for name, array in released_arrays(release, layout, count_weight).items():
            magnitude[name] = magnitude.get(name, 0) + max(int(array.max(initial=0)), -int(array.min(initial=0)))
            if magnitude[name] >= 1 << 63:  # far beyond any noise, and integers would wrap around
                raise IntegrityError(f"silo {release.silo} sent sums {name!r} that are too large to add up")
            totals[name] = totals[name] + array if name in totals else array.astype(np.int64)
    noise = math.sqrt(math.fsum(noise_of(release) ** 2 for release in releases))
    return Statistics({name: in_units(total) for name, total in totals.items()}, noise, len(releases))
