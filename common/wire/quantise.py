"""Quantisation of noisy sums to 16 bits: they need no more digits than their noise leaves them.

An array becomes whole multiples, in 16 bits, of a step that is sent beside it. The step is the smallest with which the
largest entry fits, so the rounding is far below the noise. All this happens after the noise: it is post-processing.

>>> import numpy as np
>>> quantised = quantise({"sums": np.array([[1_000_000, -3, 40_000]])}, "sums")
>>> {name: array.tolist() for name, array in quantised.items()}
{'sums': [[32258, 0, 1290]], 'sums-step': [[31]]}
>>> dequantise(quantised)["sums"].tolist()
[[999998, 0, 39990]]
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

LARGEST = 2**15 - 1
STEP = "-step"
"""What the name of the array with the step ends in."""


def quantise(arrays: Mapping[str, NDArray], name: str) -> dict[str, NDArray]:
    """`arrays` with the one called `name` in 16 bits, and its step."""
    sums = arrays[name]
    step = max(1, -(-int(np.abs(sums).max(initial=0)) // LARGEST))
    multiples = np.rint(sums / step).astype(np.int16)
    return {**arrays, name: multiples, name + STEP: np.array([[step]], dtype=np.int64)}


def dequantise(arrays: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """The inverse, up to rounding: every array in 16 bits that has a step beside it becomes 64 bits wide again.

    The arrays are untrusted: what does not fit together is left as it is, for the caller to refuse.
    """
    dequantised = dict(arrays)
    for name, array in arrays.items():
        step = arrays.get(name + STEP)
        if array.dtype == np.int16 and step is not None and step.dtype == np.int64 and step.shape == (1, 1):
            if not 1 <= int(step[0, 0]) < 2**47:
                continue
            dequantised[name] = array.astype(np.int64) * step[0, 0]
            del dequantised[name + STEP]
    return dequantised
