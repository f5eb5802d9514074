"""Progress for people, with an estimate of the time left, on stderr; nothing when asked to be quiet.

A terminal has a moving line. A file or a pipe has a line per phase, and one now and then while a phase is long.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and of how much."""

SOONEST, LATEST, STEP = 30.0, 300.0, 0.1
"""Where there is no terminal: seconds between lines when there is a step of news, seconds without one, the step."""


def silent(_what: str, _done: int, _of: int) -> None:
    """Progress that nobody watches."""


class Console:
    """Progress on stderr."""

    def __init__(self, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._quiet, self._clock = quiet, clock
        self._terminal = sys.stderr.isatty()
        self._what = ""
        self._announced: set[str] = set()
        self._started = self._shown = self._share = 0.0
        self._first = 0

    def __call__(self, what: str, done: int, of: int, where: str = "") -> None:
        """Show that `done` of `of` steps of `what` are done; `where` says it in other words."""
        if self._quiet:
            return
        now, share = self._clock(), done / of if of else 1.0
        if what != self._what:
            self.finish()
            self._what, self._started, self._shown, self._share, self._first = what, now, now, share, done
            if self._terminal:
                self._shown = float("-inf")
            elif what not in self._announced:
                self._announced.add(what)
                print(f"  {what} ...", file=sys.stderr, flush=True)
        if self._terminal and (now - self._shown > 0.1 or done >= of):
            bar = "█" * int(24 * share) + "░" * (24 - int(24 * share))
            line = f"\r\x1b[K  {where or what:<34} {bar} {share:4.0%}{self._left(now, done, of)}"
            print(line, end="", file=sys.stderr, flush=True)
        elif not self._terminal and self._is_news(now, share):
            print(f"  {where or what}: {share:.0%}{self._left(now, done, of)}", file=sys.stderr, flush=True)
        else:
            return
        self._shown, self._share = now, share

    def say(self, text: str) -> None:
        """A line that stays."""
        if not self._quiet:
            self.finish()
            print(text, file=sys.stderr, flush=True)

    def finish(self) -> None:
        """End the current line."""
        if self._what and not self._quiet:
            seconds = self._clock() - self._started
            if self._terminal:
                print(f"\r\x1b[K  {self._what:<34} {seconds:6.1f} s", file=sys.stderr, flush=True)
            self._what = ""

    def _is_news(self, now: float, share: float) -> bool:
        """Whether a line is due: few for a phase of a minute, and some for every hour of a long one."""
        since = now - self._shown
        return share < 1.0 and since >= SOONEST and (share >= self._share + STEP or since >= LATEST)

    def _left(self, now: float, done: int, of: int) -> str:
        """From the speed since the phase was first seen: what an earlier run had done took no time in this one."""
        if done >= of or done <= self._first:
            return ""
        return f", {duration((now - self._started) * (of - done) / (done - self._first))} left"


def duration(seconds: float) -> str:
    """As precise as an estimate is.

    >>> [duration(seconds) for seconds in (4.2, 89, 600, 9000)]
    ['4 s', '89 s', '10 min', '2.5 h']
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
