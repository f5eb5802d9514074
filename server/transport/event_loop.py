"""The event loop on which the exchange serves, and the bounded threads for what must not hold it up."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


def event_loop() -> asyncio.AbstractEventLoop:
    """The one of this process, in a thread of its own: gRPC's event queue is made for a single loop."""
    return _event_loop(os.getpid())


def on_loop(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, done on the loop. Called on the loop itself it would wait for ever."""
    return asyncio.run_coroutine_threadsafe(work, event_loop()).result()


class Threads:
    """So many threads, and no more. What waits for one of them costs no thread."""

    def __init__(self, number: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(number, thread_name_prefix=name)

    async def __call__(self, do: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Have it done in a thread. Who is cancelled meanwhile waits until it is done: it cannot be cut in two."""
        job = self._pool.submit(do, *args, **options)
        result = asyncio.wrap_future(job)
        cancelled = False
        while not result.done():
            try:
                await asyncio.wait([result])
            except asyncio.CancelledError:
                cancelled = True
                job.cancel()  # which helps if it has not begun
        if cancelled:
            if not result.cancelled():
                result.exception()
            raise asyncio.CancelledError
        return result.result()

    def close(self) -> None:
        """Take nothing more on."""
        self._pool.shutdown(wait=False, cancel_futures=True)


@cache
def _event_loop(_process: int) -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="exchange-loop").start()
    return loop
