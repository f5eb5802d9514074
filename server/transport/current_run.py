"""Which run's requests an exchange serves now. A standing server has several over its life, one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dpdd.server.transport.request_queue import RequestQueue, RunEnded


class CurrentRun:
    """The queue of the run that is going on; between runs there is none. Safe to use from many threads."""

    def __init__(self, queue: RequestQueue | None = None, news: Callable[[], None] = lambda: None) -> None:
        self._lock, self._news = threading.Lock(), news
        self.now: RequestQueue | None = None
        self.switch(queue)

    def switch(self, queue: RequestQueue | None) -> None:
        """Serve this run from now on, or none. `news` is called then, and whenever something is asked in this run."""
        with self._lock:
            if self.now is not None:
                self.now.news = lambda: None
            self.now = queue
            if queue is not None:
                queue.news = self._news
        self._news()

    def queue(self) -> RequestQueue:
        """The queue of the current run; RunEnded between runs."""
        queue = self.now
        if queue is None:
            raise RunEnded("no run is going on; what is on its way can be taken when its run goes on")
        return queue
