"""A build with less noise than it states, so that an audit can be seen to fail: an audit that cannot proves nothing.

There is no setting for this, and nothing in what silos run knows of it. While the context lasts, in this process, the
sampler that `privatise` calls is replaced by one whose draws are multiplied; plans, events and ledgers stay as they
are, as they would in a build with such a bug. It is for simulated silos: `client/` cannot import this folder (a test
keeps it so), `dpdd-client` has no such option, and a silo of real people is another process than `dpdd-sim`. It refuses
factors of 1 and more, so that nobody takes it for a way to more noise, and while it lasts it cannot be entered again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from dpdd.common.privacy import discrete_gaussian

FACTORS = (0.5, 0.25)
"""What `--prove` tries: half of the noise, and a quarter."""

_lasting: list[float] = []


@contextmanager
def less_noise(factor: float) -> Iterator[None]:
    """While it lasts, noise is `factor` times what it is stated to be."""
    if not 0.0 <= factor < 1.0:
        raise ValueError(f"less noise is a share of it below 1, not {factor:g}")
    if _lasting:
        raise RuntimeError("there is less noise already")

    def sample(*arguments: Any) -> NDArray[np.int64]:
        return np.rint(factor * original(*arguments)).astype(np.int64)

    original = discrete_gaussian.sample
    _lasting.append(factor)
    try:
        with mock.patch.object(discrete_gaussian, "sample", sample):
            yield
    finally:
        _lasting.clear()
