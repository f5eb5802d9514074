"""How fast a silo has to send, and how often it may call; both as plain arithmetic on times that the caller gives.

>>> Pace(grace_seconds=60.0, least_rate=1000.0, on_its_way=0).broken_by(100.0, 99_999)
'999 bytes a second on average after 100 s, and the least is 1000'
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from dpdd.common.wire.exchange import CHUNK


@dataclass(frozen=True)
class Pace:
    """An upload that is slower than this is ended, and goes on where it was: meanwhile others have its place.

    A slow line gets a chunk through in the grace that every connection has, so that it arrives in the end.
    """

    grace_seconds: float = 240.0
    least_rate: float = 16384.0
    deadline_seconds: float = 3600.0
    on_its_way: int = CHUNK
    """A chunk is seen when it is whole: so many bytes may have come that nobody has counted yet."""

    def broken_by(self, seconds: float, received: int) -> str | None:
        """Why an upload of which so many bytes came in so many seconds is ended; None when it may go on."""
        if seconds > self.deadline_seconds:
            return f"it took longer than {self.deadline_seconds:g} s, and others may wait for its place"
        if seconds > self.grace_seconds and received + self.on_its_way < self.least_rate * seconds:
            rate = int(received / seconds)
            return f"{rate} bytes a second on average after {seconds:.0f} s, and the least is {self.least_rate:g}"
        return None


class CallRates:
    """A token bucket per silo: `burst` calls at once, and `rate` a second in the long run."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self._burst, self._clock = rate, burst, clock
        self._lock = threading.Lock()
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, silo: str) -> bool:
        """Whether this silo may make a call now. One that may not loses nothing by having tried."""
        with self._lock:
            now = self._clock()
            left, then = self._left.get(silo, (float(self._burst), now))
            left = min(self._burst, left + self.rate * (now - then))
            allowed = left >= 1.0
            self._left[silo] = (left - 1.0 if allowed else left, now)
            return allowed
