"""From releases to statistics: sums of sums, in exact integers. Adding a late silo costs no privacy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpdd.common.errors import IntegrityError
from dpdd.common.privacy.clipping import Layout
from dpdd.common.privacy.events import Gaussian, parts
from dpdd.common.privacy.privatise import in_units
from dpdd.common.synthesis.statistics import Statistics
from dpdd.common.wire.release import Release


def add_up(releases: Sequence[Release], layout: Layout) -> Statistics:
    """The plain sum over silos: unbiased for the union of their records."""
    if not releases:
        raise IntegrityError("there is no release to aggregate")
    totals: dict[str, NDArray[np.int64]] = {}
    for release in releases:
        check_layout(release, layout)
        for name, array in release.arrays.items():
            totals[name] = totals[name] + array if name in totals else array.astype(np.int64)
    noise = math.sqrt(math.fsum(noise_of(release) ** 2 for release in releases))
    return Statistics({name: in_units(total) for name, total in totals.items()}, noise, len(releases))


def check_layout(release: Release, layout: Layout) -> None:
    """IntegrityError unless the release has exactly the arrays that were asked for."""
    expected = {segment.name: (segment.rows, segment.width) for segment in layout.segments}
    found = {name: array.shape for name, array in release.arrays.items()}
    if found != expected or any(array.dtype != np.int64 for array in release.arrays.values()):
        raise IntegrityError(f"silo {release.silo} sent arrays {found}, asked for were {expected}")


def noise_of(release: Release) -> float:
    """Standard deviation of the noise in each entry of a release, in units of the clip norm."""
    return math.fsum(part.sigma**2 for part in parts(release.event) if isinstance(part, Gaussian)) ** 0.5
