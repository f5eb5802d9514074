"""Rows from a mixture: many are drawn, few are chosen to have its moments together.

Drawing is systematic: the rows of a class fall into components, and those of a component into the cells of each
column, as evenly as whole rows can, so that marginals have less error than those of independent rows. Which row of the
component gets which cell is random, as columns are independent there.

Choosing is herding with the kernel u + u², where u is the share of columns in which two rows agree: its mean over rows
contains all marginals of columns and of pairs. Out of many drawn rows, one after the other is taken that brings the
mean of those taken closest to the mean of all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpdd.common.methods.sps_table.marginals import Floats, Marginals
from dpdd.common.methods.sps_table.mixture import Mixture
from dpdd.common.randomness import uniforms

Codes = NDArray[np.int64]
POOL = 2000
"""Rows of a class to choose from."""


def draw(mixture: Mixture, marginals: Marginals, label: int, count: int, seed: int, purpose: str = "") -> Codes:
    """`count` rows of a class, in random order."""
    shares, width = mixture.shares[label], len(marginals.cells)
    order, *columns = uniforms(seed, f"sps-table order {label} {purpose}", (width + 1) * count).reshape(-1, count)
    first, *offsets = uniforms(seed, f"sps-table offsets {label} {purpose}", width * len(shares) + 1)
    component = _spread(shares, first, count)[np.argsort(order)]
    rows = np.empty((count, width), dtype=np.int64)
    for number in np.unique(component):
        members = np.flatnonzero(component == number)
        for at, cells in enumerate(marginals.cells):
            shuffled = members[np.argsort(columns[at][members])]
            offset = offsets[number * width + at]
            rows[shuffled, at] = _spread(mixture.cells[label, number, cells], offset, len(members))
    return rows


def herd(mixture: Mixture, marginals: Marginals, label: int, count: int, seed: int) -> Codes:
    """`count` rows of a class whose moments are together close to the mixture's."""
    pool = draw(mixture, marginals, label, max(POOL, count), seed, "to choose from")
    hot = marginals.one_hot(pool.astype(np.float32))
    agreement = (hot @ hot.T / len(marginals.cells)).astype(np.float64)
    kernel = agreement + agreement**2
    wanted, taken = kernel.mean(axis=1), np.zeros(len(pool))
    chosen = np.empty(count, dtype=np.int64)
    for number in range(count):
        chosen[number] = np.argmax(wanted - taken / (number + 1))
        taken += kernel[chosen[number]]
    return pool[chosen]


def _spread(shares: Floats, offset: float, count: int) -> Codes:
    """`count` positions in `shares`, in order, each as often as its share says but for a fraction.

    >>> _spread(np.array([0.5, 0.3, 0.2]), 0.5, 5).tolist()
    [0, 0, 1, 1, 2]
    """
    ends = np.cumsum(shares)
    places = (np.arange(count) + offset) / count * ends[-1]
    return np.minimum(np.searchsorted(ends, places, side="right"), len(shares) - 1).astype(np.int64)
