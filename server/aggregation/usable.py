"""Which releases can be aggregated: one that cannot is left out, with a reason, and the others go on without it.

What is looked at is what the release alone can be blamed for: arrays that were not asked for, counts of other classes,
sums that are too large for integers, a distilled set that is none. A silo that is left out here has spent its budget;
the card says who was left out and why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dpdd.common.config import one_line
from dpdd.common.errors import ConfigError, DpddError, IntegrityError
from dpdd.common.privacy.clipping import Layout
from dpdd.common.wire.release import Release
from dpdd.server.aggregation.base import check_layout, noise_of, released_arrays

LARGEST_SUM = 1 << 63
"""Sums are added in integers below this."""


def usable_releases(
    releases: Sequence[Release], check: Callable[[Release], object]
) -> tuple[list[Release], Mapping[str, str]]:
    """The releases that pass `check`, and for the silos of the others what is wrong, in a sentence."""
    kept: list[Release] = []
    unusable: dict[str, str] = {}
    for release in releases:
        try:
            check(release)
        except (DpddError, ConfigError, ValueError) as error:
            unusable[release.silo] = f"sent something unusable: {one_line(error)}"
        else:
            kept.append(release)
    return kept, unusable


def check_statistics(release: Release, layout: Layout, count_weight: float | None, silos: int) -> None:
    """IntegrityError unless these are sums of this layout, small enough that those of `silos` silos can be added."""
    check_layout(release, layout)
    noise_of(release)
    most = LARGEST_SUM // max(silos, 1)
    for name, array in released_arrays(release, layout, count_weight).items():
        if max(int(array.max(initial=0)), -int(array.min(initial=0))) >= most:
            raise IntegrityError(f"silo {release.silo} sent sums {name!r} that are too large to add up")
