"""Where members of a population come from: what a generator is.

A generator draws records at `random`, and makes a `variation` of given ones: as strong as 1 it hardly knows them any
more, near 0 it leaves them as they are. All that it knows is public, or was paid for before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from numpy.typing import NDArray

Records = NDArray[Any]
"""Images as bytes (N, C, H, W), or rows of codes (N, D): synthetic ones."""


class Generator(ABC):
    """What makes members of a population."""

    @abstractmethod
    def random(self, count: int, seed: int) -> Records:
        """So many records that nobody chose."""

    @abstractmethod
    def variation(self, records: Records, mates: Records, strength: float, seed: int) -> Records:
        """One new record for each; `mates` are others of the same class that were chosen too, to be mixed with."""
