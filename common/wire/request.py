"""Release requests: what a coordinator asks for. The id is a hash of the content, so asking again is idempotent.

>>> request = ReleaseRequest(run="demo", method="dp-merf", settings={"features": 100}, epsilon=1.0, delta=1e-5,
...                          classes=("cat", "dog"), shape=(1, 8, 8), public_seed=7)
>>> decode_request(request.encode()) == request
True
>>> len(request.id)
64
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdd.common.config import one_line
from dpdd.common.data.table.schema import TableSchema, from_text
from dpdd.common.errors import ConfigError, WireError
from dpdd.common.privacy.accounting import LARGEST_EPSILON
from dpdd.common.wire.arrays import from_wire, to_wire
from dpdd.common.wire.parsing import check, check_classes, check_name, check_shape, parse
from dpdd.v1 import request_pb2

MOST_SETTINGS = 64 * 1024


class Kind(Enum):
    """What leaves the silo."""

    STATISTICS = request_pb2.KIND_STATISTICS
    DISTILLED_SET = request_pb2.KIND_DISTILLED_SET
    GRADIENT_ROUND = request_pb2.KIND_GRADIENT_ROUND
    EVALUATION = request_pb2.KIND_EVALUATION

    @classmethod
    def from_wire(cls, number: int) -> Kind:
        """The kind with that number; WireError when there is none."""
        try:
            return cls(number)
        except ValueError:
            raise WireError(f"there is no kind of release with number {number}") from None

    @property
    def words(self) -> str:
        """For people."""
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True)
class ReleaseRequest:
    """A request is data, never code; everything in it is public.

    For a table it has the schema of the columns; `classes` and `shape` are what follows from that.
    """

    run: str
    method: str
    settings: Mapping[str, Any]
    epsilon: float
    delta: float
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    public_seed: int
    kind: Kind = Kind.STATISTICS
    stage: int = 0
    backbone_sha256: bytes = b""
    stage_input: Mapping[str, NDArray] = field(default_factory=dict, compare=False)
    table: TableSchema | None = None

    def encode(self) -> bytes:
        """The one canonical encoding."""
        return self._bytes

    @property
    def id(self) -> str:
        """SHA-256 of the canonical bytes, in hexadecimal."""
        return hashlib.sha256(self._bytes).hexdigest()

    def first_stage(self) -> ReleaseRequest:
        """The request for stage 0 of the same thing; what a silo reserves for that one covers every stage.

        A request for stage 0 is its own, with all that it brings: another input is another request.
        """
        return self if self.stage == 0 else replace(self, stage=0, stage_input={})

    @cached_property
    def _bytes(self) -> bytes:
        message = request_pb2.ReleaseRequest(
            run=self.run,
            stage=self.stage,
            method=self.method,
            kind=self.kind.value,
            settings=canonical_json(self.settings),
            public_seed=self.public_seed,
            epsilon=self.epsilon,
            delta=self.delta,
            classes=self.classes,
            shape=self.shape,
            backbone_sha256=self.backbone_sha256,
            centre=[to_wire(name, np.asarray(array)) for name, array in sorted(self.stage_input.items())],
            table="" if self.table is None else self.table.text,
        )
        return message.SerializeToString(deterministic=True)


def decode_request(data: bytes) -> ReleaseRequest:
    """Any bytes to a checked request, or one WireError."""
    message = parse(request_pb2.ReleaseRequest, data, canonical=True)
    check(
        0.0 < message.epsilon <= LARGEST_EPSILON or message.epsilon == float("inf"),
        f"a request's epsilon lies in (0, {LARGEST_EPSILON:g}], not {message.epsilon}",
    )
    check(0.0 < message.delta <= 0.01, f"a request's delta lies in (0, 0.01], not {message.delta}")
    check(len(message.backbone_sha256) in (0, 32), "a backbone is named by the 32 bytes of a SHA-256")
    table = table_of(message.table)
    classes, shape = check_classes(message.classes), check_shape(message.shape)
    if table is not None:
        check((classes, shape) == (table.classes, table.shape), "a request's classes or shape are not its table's")
    return ReleaseRequest(
        run=check_name("run", message.run),
        stage=message.stage,
        method=check_name("method", message.method),
        kind=Kind.from_wire(message.kind),
        settings=_settings(message.settings),
        public_seed=message.public_seed,
        epsilon=message.epsilon,
        delta=message.delta,
        classes=classes,
        shape=shape,
        backbone_sha256=message.backbone_sha256,
        stage_input=from_wire(message.centre),
        table=table,
    )


def table_of(text: str) -> TableSchema | None:
    """The schema in a message; None where there is none, WireError where it is not one."""
    try:
        return from_text(text) if text else None
    except (ConfigError, ValueError) as error:
        raise WireError(f"a table's schema cannot be read: {one_line(error)}") from None


def canonical_json(value: Mapping[str, Any]) -> str:
    """Sorted keys, no spaces, no NaN: one text per value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)


def _settings(text: str) -> dict[str, Any]:
    check(len(text) <= MOST_SETTINGS, f"settings of {len(text)} characters; {MOST_SETTINGS} is the most")
    try:
        value = json.loads(text)
        check(isinstance(value, dict), "settings are not a JSON object")
        check(canonical_json(value) == text, "settings are not in canonical form")
    except (ValueError, RecursionError):
        raise WireError("settings are not valid JSON") from None
    assert isinstance(value, dict)
    return value
