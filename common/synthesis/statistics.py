"""What synthesis starts from: privatised sums in their own units, and how much noise is in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Statistics:
    """Sums over the records of one or more silos; `noise` is the standard deviation in every entry."""

    sums: Mapping[str, NDArray[np.float64]]
    noise: float
    silos: int
