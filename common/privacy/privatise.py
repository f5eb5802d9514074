"""The Gaussian mechanism: the only way from clean sums to something that may leave a silo.

`privatise` empties a `ClippedSum`, adds noise once and gives a `Privatised`: immutable, with the event that was really
run. There is no other constructor, so nothing downstream can be handed a clean sum, and noise cannot be drawn twice
over the same sum. (Storing clean sums and drawing fresh noise over them again and again is the classic mistake: twenty
draws over each of 10,000 sums at rate 0.01 and σ = 4.2969 have an ε of 6.7, and not of 1.)

>>> import numpy as np
>>> from dpdd.common.privacy.clipping import ClippedSum, Layout, class_segment
>>> from dpdd.common.privacy.entropy import SystemEntropy
>>> from dpdd.common.privacy.events import Gaussian
>>> total = ClippedSum(Layout((class_segment("sums", 2, classes=2),)))
>>> total.add(np.array([[0.6, 0.8]]), np.array([1]))
>>> noisy = privatise(total, Gaussian(sigma=4.0), SystemEntropy())
>>> noisy.arrays["sums"].shape, noisy.event
((2, 2), Gaussian(sigma=4.0, releases=1))
>>> privatise(total, Gaussian(sigma=4.0), SystemEntropy())
Traceback (most recent call last):
RuntimeError: this sum was privatised already; noise is drawn once
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from dpdd.common.privacy import discrete_gaussian
from dpdd.common.privacy.clipping import FIXED_POINT_ONE, ClippedSum, Layout
from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.events import Event, Gaussian, NonPrivate, PoissonGaussian, compose
from dpdd.common.privacy.sampling import SampledSum

_ONLY_HERE = object()


@dataclass(frozen=True, eq=False)
class Privatised:
    """Arrays that carry their noise for ever, and what making them cost.

    `distance` is the statistical distance of all the noise in it to the ideal; `releasable` is False when the noise
    or the sample came from a simulation's seed, or when there is no noise.
    """

    arrays: Mapping[str, NDArray]
    event: Event
    distance: float
    releasable: bool
    _made_by: InitVar[object] = None  # not kept: dataclasses.replace cannot pass it on

    def __post_init__(self, _made_by: object) -> None:
        if _made_by is not _ONLY_HERE:
            raise TypeError("Privatised comes out of privatise(); it cannot be built from other arrays")
        for array in self.arrays.values():
            array.setflags(write=False)
        object.__setattr__(self, "arrays", MappingProxyType(dict(self.arrays)))

    def post_process(self, function: Callable[[Mapping[str, NDArray]], Mapping[str, NDArray]]) -> Privatised:
        """Replace the arrays by any function of them (and of public data): free, by post-processing."""
        return Privatised(dict(function(self.arrays)), self.event, self.distance, self.releasable, _ONLY_HERE)


def privatise(total: ClippedSum, event: Gaussian | PoissonGaussian | NonPrivate, entropy: Entropy) -> Privatised:
    """Add noise of `event` to `total`, empty afterwards; the arrays are integers in units of 1/FIXED_POINT_ONE."""
    if isinstance(event, NonPrivate) and entropy.releasable:
        raise ValueError("sums without noise exist in simulations only")
    if isinstance(event, Gaussian) and event.releases != 1:
        raise ValueError("one sum is one release; compose events to account for several")
    if isinstance(total, SampledSum):
        if not total.fits(event):
            raise ValueError(f"a sum over a sample at rate {total.rate:g} is not what {event} accounts for")
        if len(total.members):
            raise ValueError("some members of the sample were never added: the sum would be over another sample")
    elif isinstance(event, PoissonGaussian):
        raise ValueError("only a sum that drew its own sample may be accounted for as sampled")
    distance = noise_distance(event, total.layout)
    releasable = entropy.releasable and not (isinstance(total, SampledSum) and not total.releasable)
    sums = total._take()
    if not isinstance(event, NonPrivate):
        scale = discrete_gaussian.scale_for(event.sigma * FIXED_POINT_ONE)
        for array in sums.values():
            array += discrete_gaussian.sample(scale, array.size, entropy).reshape(array.shape)
    return Privatised(sums, event, distance, releasable, _ONLY_HERE)


def noise_distance(event: Gaussian | PoissonGaussian | NonPrivate, layout: Layout) -> float:
    """The statistical distance to ideal noise of one release in `layout`; known before any record is read."""
    if isinstance(event, NonPrivate):
        return 0.0
    scale = discrete_gaussian.scale_for(event.sigma * FIXED_POINT_ONE)
    return layout.coordinates * discrete_gaussian.distance(scale)


def combine(*pieces: Privatised) -> Privatised:
    """Several privatised sums over the same records as one: the events compose, names must not clash."""
    arrays: dict[str, NDArray] = {}
    for piece in pieces:
        clash = arrays.keys() & piece.arrays.keys()
        if clash:
            raise ValueError(f"two pieces of one release are both called {sorted(clash)}")
        arrays.update(piece.arrays)
    return Privatised(
        arrays,
        compose(*(piece.event for piece in pieces)),
        math.fsum(piece.distance for piece in pieces),
        all(piece.releasable for piece in pieces),
        _ONLY_HERE,
    )


def numbered(piece: Privatised, number: int) -> Privatised:
    """`piece` with a number before each name, so that it can be combined with its like."""
    return piece.post_process(lambda arrays: {f"{number} {name}": array for name, array in arrays.items()})


def in_units(array: NDArray) -> NDArray[np.float64]:
    """Grid steps back to the contribution's own unit."""
    return array.astype(np.float64) / FIXED_POINT_ONE
