"""What aggregation rules share: their contract, the check of a release against its layout, its arrays and its noise.

A rule turns the releases of several silos, whose sums all have one layout, into one `Statistics`. That is
post-processing: a silo that comes late costs the others no privacy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpdd.common.errors import IntegrityError
from dpdd.common.privacy.clipping import FIXED_POINT_ONE, Layout
from dpdd.common.synthesis.statistics import Statistics, noise_in
from dpdd.common.wire.quantise import dequantise
from dpdd.common.wire.release import Release


@dataclass(frozen=True)
class AggregationRule:
    """A rule: `apply(releases, layout, count_weight)`, and whether it works only for methods that release class counts.

    `count_weight` is what one record adds to the count of its class, None for a method without counts.

    What a card says of each silo's influence takes two more, if the rule weighs silos: `weights` are what the sums of
    each class are multiplied by (silos x classes; by default 1), and `without_each` the statistics without each silo
    (by default the rule on the others).
    """

    apply: Callable[[Sequence[Release], Layout, float | None], Statistics]
    needs_counts: bool = False
    weights: Callable[[Sequence[Release], Layout, float | None], NDArray[np.float64]] | None = None
    without_each: Callable[[Sequence[Release], Layout, float | None], Sequence[Statistics]] | None = None


def check_releases(releases: Sequence[Release], layout: Layout) -> None:
    """IntegrityError unless there are releases, and all of them have this layout."""
    if not releases:
        raise IntegrityError("there is no release to aggregate")
    for release in releases:
        check_layout(release, layout)


def check_layout(release: Release, layout: Layout) -> None:
    """IntegrityError unless the release has exactly the arrays that were asked for."""
    expected = {segment.name: (segment.rows, segment.width) for segment in layout.segments}
    arrays = dequantise(release.arrays)
    shapes = {name: array.shape for name, array in arrays.items()}
    types = {name: str(array.dtype) for name, array in arrays.items()}
    if shapes != expected or set(types.values()) != {"int64"}:
        raise IntegrityError(
            f"silo {release.silo} sent arrays {shapes} of types {types}, asked for were {expected} in 64-bit integers, "
            "or in 16 bits with a proper step"
        )


def released_arrays(release: Release, layout: Layout, count_weight: float | None) -> Mapping[str, NDArray]:
    """The released arrays, with the exact counts where the silo's operator declared them public."""
    arrays = dequantise(release.arrays)
    if not release.public_counts or count_weight is None or "count" not in arrays:
        return arrays
    if len(release.public_counts) != layout.classes:
        raise IntegrityError(f"silo {release.silo} declares {len(release.public_counts)} counts, not {layout.classes}")
    exact = np.rint(np.asarray(release.public_counts, dtype=np.float64)[:, None] * count_weight * FIXED_POINT_ONE)
    return {**arrays, "count": exact.astype(np.int64)}


def noise_of(release: Release) -> float:
    """Standard deviation of the noise in each entry of a release, in units of the clip norm.

    It is that of the event that the request asks for, and never what a silo says of itself: by it silos are weighed.
    """
    if release.planned is None:
        raise IntegrityError(f"the release of silo {release.silo} was not compared with its request")
    return noise_in(release.planned)
