"""NumPy arrays as `dpdd.v1.Array`, and back.

>>> import numpy as np
>>> from_wire([to_wire("x", np.arange(3))])["x"]
array([0, 1, 2])
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable

import numpy as np
from numpy.typing import NDArray

from dpdd.common.errors import WireError
from dpdd.common.wire.parsing import check, check_name
from dpdd.v1 import array_pb2

_DTYPES: dict[int, np.dtype] = {
    array_pb2.DTYPE_INT64: np.dtype("<i8"),
    array_pb2.DTYPE_INT32: np.dtype("<i4"),
    array_pb2.DTYPE_INT16: np.dtype("<i2"),
    array_pb2.DTYPE_UINT8: np.dtype("u1"),
    array_pb2.DTYPE_FLOAT32: np.dtype("<f4"),
    array_pb2.DTYPE_FLOAT64: np.dtype("<f8"),
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}


def to_wire(name: str, array: NDArray) -> array_pb2.Array:
    """`array` under `name`; its dtype must be one that the contract knows."""
    code = _CODES.get(array.dtype.newbyteorder("<"))
    if code is None:
        raise TypeError(f"arrays of {array.dtype} do not travel")
    data = np.ascontiguousarray(array, dtype=_DTYPES[code]).tobytes()
    return array_pb2.Array(name=name, dtype=array_pb2.DType.Name(code), shape=array.shape, data=data)


def from_wire(messages: Iterable[array_pb2.Array]) -> dict[str, NDArray]:
    """Read-only arrays by name; WireError when a size, a name or a dtype is off."""
    arrays: dict[str, NDArray] = {}
    for message in messages:
        dtype = check_array(message, len(message.data), arrays)
        arrays[message.name] = np.frombuffer(message.data, dtype=dtype).reshape(tuple(message.shape))
    return arrays


def check_array(message: array_pb2.Array, length: int, names: Container[str]) -> np.dtype:
    """The dtype of an array whose data has `length` bytes; WireError when a size, a name or a dtype is off."""
    name = check_name("array name", message.name)
    check(name not in names, f"two arrays are called {name}")
    dtype = _DTYPES.get(message.dtype)
    if dtype is None:
        raise WireError(f"array {name} has an unknown dtype ({message.dtype})")
    check(len(message.shape) <= 8, f"array {name} has {len(message.shape)} dimensions; 8 is the most")
    size = math.prod(message.shape) * dtype.itemsize
    check(size == length, f"array {name} announces {size} bytes and has {length}")
    if size == 0:
        try:
            np.empty(0, dtype).reshape(tuple(message.shape))
        except ValueError:  # no entries, but extents whose product no array can have
            raise WireError(f"array {name} has the impossible shape {tuple(message.shape)}") from None
    return dtype
