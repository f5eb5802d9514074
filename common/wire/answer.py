"""A silo's answer: a signed release, or a refusal that says why.

>>> refusal = Refusal("00" * 32, "north", Reason.NOT_ALLOWED, "the policy does not allow dp-merf")
>>> decode_answer(encode_answer(refusal)) == refusal
True
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from dpdd.common.wire.parsing import check, check_name, parse
from dpdd.v1 import refusal_pb2


class Reason(Enum):
    """Why a silo says no; `docs/refusals.md` has a paragraph on each."""

    OVER_BUDGET = refusal_pb2.REASON_OVER_BUDGET
    NOT_ALLOWED = refusal_pb2.REASON_NOT_ALLOWED
    AWAITING_APPROVAL = refusal_pb2.REASON_AWAITING_APPROVAL
    UNKNOWN_METHOD = refusal_pb2.REASON_UNKNOWN_METHOD
    MALFORMED = refusal_pb2.REASON_MALFORMED
    DENIED = refusal_pb2.REASON_DENIED
    WRONG_COORDINATOR = refusal_pb2.REASON_WRONG_COORDINATOR

    @property
    def words(self) -> str:
        """For people."""
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True)
class Shortfall:
    """In ε at the silo's δ."""

    requested: float
    remaining: float

    @property
    def difference(self) -> float:
        """How much too large the request is."""
        return self.requested - self.remaining


@dataclass(frozen=True)
class Refusal:
    """A no that depends on the request, the policy and the ledger, never on the records."""

    request_id: str
    silo: str
    reason: Reason
    message: str
    shortfall: Shortfall | None = None


@dataclass(frozen=True)
class SignedReleaseBytes:
    """The bytes of a SignedRelease, as they lie in the silo's outbox."""

    data: bytes


Answer = Refusal | SignedReleaseBytes


def encode_answer(answer: Answer) -> bytes:
    """An answer as protobuf bytes."""
    if isinstance(answer, SignedReleaseBytes):
        return refusal_pb2.Answer(signed_release=answer.data).SerializeToString(deterministic=True)
    message = refusal_pb2.Refusal(
        request_id=bytes.fromhex(answer.request_id),
        silo=answer.silo,
        reason=answer.reason.value,
        message=answer.message,
    )
    if answer.shortfall is not None:
        message.shortfall.requested = answer.shortfall.requested
        message.shortfall.remaining = answer.shortfall.remaining
        message.shortfall.difference = answer.shortfall.difference
    return refusal_pb2.Answer(refusal=message).SerializeToString(deterministic=True)


def decode_answer(data: bytes) -> Answer:
    """Any bytes to an answer, or one WireError. A release inside still has its signature to be checked."""
    message = parse(refusal_pb2.Answer, data)
    match message.WhichOneof("answer"):
        case "signed_release":
            return SignedReleaseBytes(message.signed_release)
        case "refusal":
            return _refusal(message.refusal)
        case _:
            check(False, "an answer that is neither a release nor a refusal")
            raise AssertionError


def _refusal(message: refusal_pb2.Refusal) -> Refusal:
    check(len(message.request_id) == 32, "a refusal names its request by the 32 bytes of a SHA-256")
    check(message.reason in {reason.value for reason in Reason}, f"there is no refusal with number {message.reason}")
    check(len(message.message) <= 1000 and message.message.isprintable(), "a refusal whose message is not printable")
    shortfall = None
    if message.HasField("shortfall"):
        numbers = message.shortfall
        check(not (math.isnan(numbers.requested) or math.isnan(numbers.remaining)), "a shortfall that is no number")
        shortfall = Shortfall(numbers.requested, numbers.remaining)
    return Refusal(
        message.request_id.hex(), check_name("silo", message.silo), Reason(message.reason), message.message, shortfall
    )
