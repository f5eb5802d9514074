"""Reports of dry rounds: whole ones decode, impossible ones do not; a dry round never passes for a request."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpdd.common.errors import WireError
from dpdd.common.wire.answer import Reason, Refusal
from dpdd.common.wire.exchange import NONCE, open_request, sign_request
from dpdd.common.wire.plan import Cost, Declared, PlanReport, decode_report, encode_report
from dpdd.v1 import exchange_pb2, plan_pb2, refusal_pb2

DECLARED = Declared(("a", "b"), (3, 64, 64), (0.0, 1.0), "crop")
REPORT = PlanReport("ab" * 32, "north", DECLARED, "dpdd 0.1.0", Cost(1.0, 1e-5, 640))
REFUSED = PlanReport(
    "ab" * 32, "north", DECLARED, "dpdd", refusal=Refusal("ab" * 32, "north", Reason.NOT_ALLOWED, "no")
)


def test_reports_come_back_as_they_were() -> None:
    for report in (REPORT, REFUSED, PlanReport("ab" * 32, "n", DECLARED, "dpdd", Cost(math.inf, 1e-5, 0), None, True)):
        assert decode_report(encode_report(report)) == report
    assert REPORT.would_answer and not REFUSED.would_answer


CHANGES: dict[str, Callable[[plan_pb2.PlanReport], Any]] = {
    "32 bytes": lambda message: setattr(message, "request_id", b"short"),
    "is not a name": lambda message: setattr(message, "silo", "../north"),
    "unprintable software": lambda message: setattr(message, "software", "a\nb"),
    "declares no classes": lambda message: message.ClearField("declared"),
    "neither a cost nor a refusal": lambda message: message.ClearField("cost"),
    "names a class twice": lambda message: message.declared.classes.append("a"),
    "1 or 3 extents": lambda message: message.declared.shape.append(2),
    "range of values": lambda message: setattr(message.declared, "highest", math.nan),
    "whose fit is none of": lambda message: setattr(message.declared, "fit", "stretch"),
    "epsilon is not positive": lambda message: setattr(message.cost, "epsilon", math.nan),
    "delta does not lie": lambda message: setattr(message.cost, "delta", 0.5),
    "bytes that a release may have": lambda message: setattr(message.cost, "bytes", 1 << 40),
    "another request or by another silo": lambda message: message.refusal.CopyFrom(
        refusal_pb2.Refusal(request_id=bytes(32), silo="north", reason=refusal_pb2.REASON_DENIED)
    ),
}


@pytest.mark.parametrize("sentence", CHANGES)
def test_reports_that_cannot_be_are_refused(sentence: str) -> None:
    message = plan_pb2.PlanReport.FromString(encode_report(REPORT))
    CHANGES[sentence](message)
    with pytest.raises(WireError, match=sentence):
        decode_report(message.SerializeToString())


def test_neither_a_request_nor_a_dry_round_passes_for_the_other() -> None:
    key = Ed25519PrivateKey.generate()
    public, nonce, request = key.public_key().public_bytes_raw(), bytes(range(NONCE)), b"a request"
    asked = exchange_pb2.RequestEnvelope.FromString(sign_request(request, key))
    rehearsed = exchange_pb2.RequestEnvelope.FromString(sign_request(request, key, nonce))
    assert open_request(asked.SerializeToString(), public).signed
    opened = open_request(rehearsed.SerializeToString(), public)
    assert opened.signed and (opened.request, opened.rehearsal) == (request, nonce)
    forged = [
        exchange_pb2.RequestEnvelope(request=request, signature=asked.signature, rehearsal=nonce),
        exchange_pb2.RequestEnvelope(request=request, signature=rehearsed.signature),
        exchange_pb2.RequestEnvelope(request=nonce + request, signature=rehearsed.signature),
        exchange_pb2.RequestEnvelope(request=request, signature=rehearsed.signature, rehearsal=nonce[::-1]),
        exchange_pb2.RequestEnvelope(request=b"other", signature=rehearsed.signature, rehearsal=nonce),
    ]
    for envelope in forged:
        assert not open_request(envelope.SerializeToString(), public).signed
    with pytest.raises(WireError, match="16 bytes"):
        open_request(exchange_pb2.RequestEnvelope(request=request, rehearsal=b"x").SerializeToString(), public)


def test_a_request_is_sent_in_the_same_bytes_as_before_there_were_dry_rounds() -> None:
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    signature = key.sign(b"dpdd request v1\0" + b"a request")
    assert sign_request(b"a request", key) == b"\x0a\x09a request\x12\x40" + signature
