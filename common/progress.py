"""Progress for people: a moving line on a terminal, a line per phase elsewhere, nothing when asked to be quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and of how much."""


def silent(_what: str, _done: int, _of: int) -> None:
    """Progress that nobody watches."""


class Console:
    """Progress on stderr."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._what = ""
        self._announced: set[str] = set()
        self._started = self._shown = 0.0

    def __call__(self, what: str, done: int, of: int) -> None:
        """Show that `done` of `of` steps of `what` are done."""
        if self._quiet:
            return
        now = time.monotonic()
        if what != self._what:
            self.finish()
            self._what, self._started, self._shown = what, now, 0.0
            if not self._terminal and what not in self._announced:
                self._announced.add(what)
                print(f"  {what} ...", file=sys.stderr, flush=True)
        if self._terminal and (now - self._shown > 0.1 or done >= of):
            self._shown = now
            share = done / of if of else 1.0
            left = f", {(now - self._started) * (1 - share) / share:.0f} s left" if 0 < share < 1 else ""
            bar = "█" * int(24 * share) + "░" * (24 - int(24 * share))
            print(f"\r\x1b[K  {what:<34} {bar} {share:4.0%}{left}", end="", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """A line that stays."""
        if not self._quiet:
            self.finish()
            print(text, file=sys.stderr, flush=True)

    def finish(self) -> None:
        """End the current line."""
        if self._what and not self._quiet:
            seconds = time.monotonic() - self._started
            if self._terminal:
                print(f"\r\x1b[K  {self._what:<34} {seconds:6.1f} s", file=sys.stderr, flush=True)
            self._what = ""
