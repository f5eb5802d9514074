"""What synthesis starts from: privatised sums in their own units, and how much noise is in them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpdd.common.privacy.events import Event, NonPrivate, parts
from dpdd.common.privacy.privatise import in_units
from dpdd.common.wire.quantise import dequantise


@dataclass(frozen=True, eq=False)
class Statistics:
    """Sums over the records of one or more silos; `noise` is the standard deviation in every entry.

    `stage_input` is what a later stage was asked with. It is kept and never computed again: a silo that comes late
    changes the sums of earlier stages, but not what the others were asked.
    """

    sums: Mapping[str, NDArray[np.float64]]
    noise: float
    silos: int
    stage_input: Mapping[str, NDArray] = field(default_factory=dict)


def noise_in(event: Event) -> float:
    """Standard deviation of the noise in each entry of a release with this event, in units of the clip norm."""
    return math.fsum(part.sigma**2 for part in parts(event) if not isinstance(part, NonPrivate)) ** 0.5


def of_one_silo(
    arrays: Mapping[str, NDArray], event: Event, stage_input: Mapping[str, NDArray] | None = None
) -> Statistics:
    """The statistics in what one silo privatised: grid steps back to units."""
    sums = {name: in_units(array) for name, array in dequantise(arrays).items()}
    return Statistics(sums, noise_in(event), 1, stage_input or {})


def lost_in_noise(counts: NDArray[np.float64], noise: NDArray[np.float64] | float) -> NDArray[np.bool_]:
    """Which noisy counts are not above two standard deviations of their own noise."""
    lost: NDArray[np.bool_] = counts <= 2.0 * np.asarray(noise)
    return lost
