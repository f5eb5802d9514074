"""Poisson subsampling: every record is in the sample with the same probability, independently of all others.

That is what the accountant's Poisson events mean; shuffled batches of a fixed size are something else. Normalise by the
expected size, never by the realised one, which is private.

A `SampledSum` draws its own sample, and who is in it never leaves the silo. Contributions are accepted from members
only, and once from each; so a sum that was planned as Poisson-sampled cannot be fed with shuffled batches, with a fixed
number of records, or with somebody twice. A sample may be empty; its sum is zero, and gets noise like any other.

>>> from dpdd.common.privacy.clipping import class_segment
>>> from dpdd.common.privacy.entropy import SeededEntropy
>>> total = SampledSum(Layout((class_segment("sums", 2, classes=1),)), rate=0.5, records=8, entropy=SeededEntropy(2))
>>> total.members.tolist()
[0, 2, 3, 5, 7]
>>> total.add_members(np.array([1]), np.array([[0.6, 0.8]]), np.array([0]))
Traceback (most recent call last):
ValueError: only members of the sample are added to it, each once
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dpdd.common.privacy.clipping import ClippedSum, Layout
from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.events import Gaussian, NonPrivate, PoissonGaussian


def poisson_sample(records: int, rate: float, entropy: Entropy) -> NDArray[np.int64]:
    """Positions of the sampled records, in order; each is in with probability `rate`, rounded down to 64 bits."""
    if not 0.0 < rate <= 1.0:
        raise ValueError(f"a sampling rate lies in (0, 1], not {rate!r}")
    if rate == 1.0:
        return np.arange(records, dtype=np.int64)
    words = np.frombuffer(entropy.take(8 * records), dtype="<u8")
    return np.flatnonzero(words < np.uint64(math.floor(math.ldexp(rate, 64)))).astype(np.int64)


def sampled_event(sigma: float, rate: float, steps: int) -> Gaussian | PoissonGaussian:
    """The event of `steps` sums over samples at `rate`, which is a plain Gaussian where the rate is 1."""
    return Gaussian(sigma, steps) if rate == 1.0 else PoissonGaussian(sigma, rate, steps)


class SampledSum(ClippedSum):
    """A sum over a Poisson sample of `records` records that it draws itself; `releasable` as its entropy was."""

    __slots__ = ("_not_added", "rate", "releasable")

    def __init__(self, layout: Layout, rate: float, records: int, entropy: Entropy) -> None:
        super().__init__(layout)
        self.rate = rate
        self.releasable = entropy.releasable  # who knows the sample has the sum without its amplification
        self._not_added = np.zeros(records, dtype=np.bool_)
        self._not_added[poisson_sample(records, rate, entropy)] = True

    @property
    def members(self) -> NDArray[np.int64]:
        """The numbers of the sampled records that were not added yet."""
        return np.flatnonzero(self._not_added)

    def add_members(
        self, members: NDArray[np.int64], contributions: NDArray[np.floating], labels: NDArray[np.int64]
    ) -> None:
        """Clip and add the contributions of some members."""
        if len(members) != len(labels):
            raise ValueError("each member has a label")
        added = self._admitted(members)
        super().add(contributions, labels)
        self._not_added[added] = False

    def _admitted(self, members: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which records these are; ValueError unless all are members of the sample who were not added yet."""
        added = np.zeros_like(self._not_added)
        added[members] = True  # a number and its like from the end (-1) are the same record
        if added.sum() != len(members) or (added & ~self._not_added).any():
            raise ValueError("only members of the sample are added to it, each once")
        return added

    def add(
        self,
        contributions: NDArray[np.floating],
        labels: NDArray[np.int64],
        factors: Mapping[str, tuple[NDArray[np.floating], NDArray[np.floating]]] | None = None,
    ) -> None:
        """Not here: it would not say whose contributions they are."""
        raise TypeError("contributions to a sampled sum come with the numbers of their records: use add_members")

    def fits(self, event: Gaussian | PoissonGaussian | NonPrivate) -> bool:
        """Whether this sum may be privatised as `event`."""
        return isinstance(event, NonPrivate) or event == sampled_event(event.sigma, self.rate, 1)
