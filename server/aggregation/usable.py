"""Which releases can be aggregated: one that cannot is left out, with a reason, and the others go on without it.

What is looked at is what the release alone can be blamed for: that it is not what its request asks for
(`dpdd.common.methods.verification`), sums that are too large for integers, a distilled set that is none. A silo that is
left out here has spent its budget; the card says who was left out and why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dpdd.common.config import one_line
from dpdd.common.errors import ConfigError, DpddError, IntegrityError
from dpdd.common.methods.verification import Expected, verified
from dpdd.common.privacy.clipping import Layout
from dpdd.common.wire.release import Release
from dpdd.server.aggregation.base import check_layout, noise_of, released_arrays

LARGEST_SUM = 1 << 63
"""Sums are added in integers below this."""

UNUSABLE = "sent something unusable"
"""What is said of a silo whose release is left out, before the reason."""


def usable_releases(
    releases: Sequence[Release],
    expected: Mapping[str, Expected],
    check: Callable[[Release], object] = lambda _release: None,
) -> tuple[list[Release], dict[str, str]]:
    """The releases that are what is `expected` of answers to their requests and pass `check`, and for the silos of the
    others what is wrong, in a sentence."""
    kept: list[Release] = []
    unusable: dict[str, str] = {}
    for release in releases:
        try:
            as_asked = verified(release, expected[release.request_id])
            check(as_asked)
        except (DpddError, ConfigError, ValueError) as error:
            unusable[release.silo] = f"{UNUSABLE}: {one_line(error)}"
        else:
            kept.append(as_asked)
    return kept, unusable


def check_quorum(kept: int, of: int, quorum: int, trouble: Mapping[str, str]) -> None:
    """DpddError where releases that cannot be used leave too few."""
    unusable = {silo: why for silo, why in trouble.items() if why.startswith(UNUSABLE)}
    needed = min(quorum, of)
    if unusable and kept < needed:
        reasons = "; ".join(f"{silo}: {why}" for silo, why in sorted(unusable.items()))
        raise DpddError(f"{kept} of {of} releases can be used, and the quorum is {needed} ({reasons})")


def check_statistics(release: Release, layout: Layout, count_weight: float | None, silos: int) -> None:
    """IntegrityError unless these are sums of this layout, small enough that those of `silos` silos can be added."""
    check_layout(release, layout)
    noise_of(release)
    most = LARGEST_SUM // max(silos, 1)
    for name, array in released_arrays(release, layout, count_weight).items():
        if max(int(array.max(initial=0)), -int(array.min(initial=0))) >= most:
            raise IntegrityError(f"silo {release.silo} sent sums {name!r} that are too large to add up")
