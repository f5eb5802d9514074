"""Reading blocks of features ahead, on a thread, while somebody computes on the block before.

>>> import numpy as np
>>> [block.tolist() for block in read_ahead(np.arange(5), [slice(0, 3), slice(3, 5)], 1)]
[[0, 1, 2], [3, 4]]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy.typing as npt

from dpdd.common.data.features import Features


def read_ahead(features: Features, blocks: Sequence[slice], ahead: int) -> Iterator[npt.NDArray[Any]]:
    """Yield the blocks in order; `ahead` of them, at most, are read before they are asked for (0: none, no thread).

    An error in reading comes out where the block would have. The thread ends with the iteration, finished or not.
    """
    if ahead == 0:
        yield from (features[block] for block in blocks)
        return
    waiting: deque[Future[npt.NDArray[Any]]] = deque()
    upcoming = iter(blocks)
    with ThreadPoolExecutor(1, thread_name_prefix="dpdd-read-ahead") as reader:

        def submit(count: int) -> None:
            waiting.extend(reader.submit(features.__getitem__, block) for block in islice(upcoming, count))

        try:
            submit(ahead)
            while waiting:
                block = waiting.popleft().result()
                submit(1)
                yield block
                del block  # or it would stay while the next one is waited for
        finally:
            reader.shutdown(cancel_futures=True)
