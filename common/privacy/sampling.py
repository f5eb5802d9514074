"""Poisson sampling: every record is in the batch with the same probability, independently of all others.

That is what the accountant's Poisson events mean; shuffled batches of a fixed size are something else. A batch may be
empty, and a sum over it is released all the same: normalise by the expected size, never by the realised one, which is
private.

>>> from dpdd.common.privacy.entropy import SeededEntropy
>>> len(poisson_sample(10_000, 0.0001, SeededEntropy(1))) < 10
True
>>> poisson_sample(0, 0.5, SeededEntropy(1)).tolist()
[]
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dpdd.common.privacy.entropy import Entropy


def poisson_sample(records: int, rate: float, entropy: Entropy) -> NDArray[np.int64]:
    """Positions of the sampled records, in order; each is in with probability `rate`, rounded down to 64 bits."""
    if not 0.0 < rate <= 1.0:
        raise ValueError(f"a sampling rate lies in (0, 1], not {rate!r}")
    if rate == 1.0:
        return np.arange(records, dtype=np.int64)
    words = np.frombuffer(entropy.take(8 * records), dtype="<u8")
    return np.flatnonzero(words < np.uint64(math.floor(math.ldexp(rate, 64)))).astype(np.int64)
