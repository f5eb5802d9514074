"""How often a request has ended its worker: after a few times it is not tried again until something changes.

A file per request in `state/deaths` has a line for each end, with the limits under which it came. Ends under other
limits do not count, so whoever raises a ceiling has the request tried again. What ended with the whole node (a crash, a
power cut) leaves no line.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from dpdd.client.worker.limits import Limits
from dpdd.common.errors import DpddError

MOST_DEATHS = 3


class Deaths:
    """The folder with these files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def check(self, request_id: str, limits: Limits) -> None:
        """DpddError when the request has ended as many workers as it may."""
        path = self._folder / request_id
        try:
            ends = [line.split() for line in path.read_text().splitlines()]
        except FileNotFoundError:
            return
        mine = [end for of, end in ends if of == _name(limits)]
        if len(mine) >= MOST_DEATHS:
            raise DpddError(
                f"request {request_id[:12]} ended its worker {len(mine)} times (the last: {mine[-1]}) and is not tried "
                f"again under these limits; raise one in silo.toml, or remove {path}"
            )

    def note(self, request_id: str, limits: Limits, end: str) -> None:
        """One more."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        with (self._folder / request_id).open("a") as file:
            file.write(f"{_name(limits)} {end}\n")
            file.flush()
            os.fsync(file.fileno())

    def forget(self, request_id: str) -> None:
        """It was answered."""
        (self._folder / request_id).unlink(missing_ok=True)


def _name(limits: Limits) -> str:
    return hashlib.sha256(repr(limits).encode()).hexdigest()[:16]
