"""Which run's requests an exchange serves now. A standing server has several over its life, one after the other."""

from __future__ import annotations

import threading

from dpdd.server.transport.request_queue import RequestQueue, RunEnded


class CurrentRun:
    """The queue of the run that is going on; between runs there is none. Safe to use from many threads."""

    def __init__(self, queue: RequestQueue | None = None) -> None:
        self._changed, self._queue = threading.Condition(), queue
        self._wakes = 0

    def switch(self, queue: RequestQueue | None) -> None:
        """Serve this run from now on, or none."""
        with self._changed:
            before, self._queue = self._queue, queue
            self._changed.notify_all()
        if before is not None:
            before.wake()

    def queue(self) -> RequestQueue:
        """The queue of the current run; RunEnded between runs."""
        queue = self._queue
        if queue is None:
            raise RunEnded("no run is going on; what is on its way can be taken when its run goes on")
        return queue

    def wait(self, seconds: float) -> RequestQueue | None:
        """The queue of the current run; between runs, that of the next one, or None after so long, or after `wake`."""
        with self._changed:
            before = self._wakes
            self._changed.wait_for(lambda: self._queue is not None or self._wakes != before, seconds)
            return self._queue

    def wake(self) -> None:
        """Make those who wait look up."""
        with self._changed:
            queue = self._queue
            self._wakes += 1
            self._changed.notify_all()
        if queue is not None:
            queue.wake()
