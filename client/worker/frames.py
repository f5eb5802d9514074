"""Messages on a stream between two processes: a kind, a length, and that many bytes.

>>> reader = Reader()
>>> list(reader.feed(frame(Kind.ERROR, b"no")[:4])), list(reader.feed(frame(Kind.ERROR, b"no")[4:]))
([], [(<Kind.ERROR: 4>, b'no')])
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum

from dpdd.common.wire.parsing import MOST_BYTES

_HEAD = struct.Struct("!BQ")
MOST_FRAME = MOST_BYTES + (1 << 20)


class Kind(IntEnum):
    """What a message is."""

    JOB = 1
    PROGRESS = 2
    RESULT = 3
    ERROR = 4


class BrokenFrames(Exception):
    """What came is no such message."""


def frame(kind: Kind, payload: bytes) -> bytes:
    """One message."""
    return _HEAD.pack(kind, len(payload)) + payload


class Reader:
    """Puts messages of at most so many bytes together again."""

    def __init__(self, most: int = MOST_FRAME) -> None:
        self._data = bytearray()
        self._most = most

    def feed(self, data: bytes) -> Iterator[tuple[Kind, bytes]]:
        """Take some bytes; gives the messages that are whole now. BrokenFrames when there can be none."""
        self._data += data
        while len(self._data) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._data)
            if length > self._most or kind not in list(Kind):
                raise BrokenFrames(f"a message of kind {kind} with {length} bytes")
            end = _HEAD.size + length
            if len(self._data) < end:
                return
            payload = bytes(memoryview(self._data)[_HEAD.size : end])
            del self._data[:end]
            yield Kind(kind), payload
