"""Our protobuf messages inside Flower's: one uint8 array per message, which every Flower engine chunks.

(A `ConfigRecord` would not be chunked, and is seven times slower at 300 MB.)
"""

from __future__ import annotations

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

from flwr.app import Array, ArrayRecord, RecordDict

from dpdd.common.errors import WireError

ACTION = "query.release"
PLAN = "query.plan"
"""The messages that a silo answers: with a release, or with its plan of one (a dry round)."""

_RECORD, _ARRAY = "dpdd", "payload"


def pack(data: bytes, message_name: str) -> RecordDict:
    """`data`, the bytes of the protobuf message `message_name`, as Flower content."""
    array = Array(dtype="uint8", shape=(len(data),), stype=message_name, data=data)
    return RecordDict({_RECORD: ArrayRecord({_ARRAY: array})})


def unpack(content: RecordDict, message_name: str) -> bytes:
    """The bytes that `pack` put in; WireError when the content is something else."""
    try:
        array = content.array_records[_RECORD][_ARRAY]
    except KeyError:
        raise WireError("a Flower message without a dpdd payload") from None
    if array.stype != message_name:
        raise WireError(f"a Flower message that carries something else than a {message_name}")
    return array.data
