"""Releases: what a silo has made, signed, and may send as often as it is asked.

A `Release` is made from a `Privatised` value, whose noise is in it already, or read from bytes that a silo signed.
Neither way accepts arrays, so there is no way to build one from clean sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import InitVar, dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from numpy.typing import NDArray

from dpdd.common.errors import IntegrityError
from dpdd.common.privacy.accounting import Guarantee
from dpdd.common.privacy.events import Event
from dpdd.common.privacy.privatise import Privatised
from dpdd.common.wire.arrays import from_wire, to_wire
from dpdd.common.wire.parsing import check, check_name, parse
from dpdd.common.wire.privacy import event_from_wire, event_to_wire, guarantee_from_wire, guarantee_to_wire
from dpdd.common.wire.request import Kind, ReleaseRequest
from dpdd.v1 import release_pb2

_PREFIX = b"dpdd release v1\0"
_ONLY_HERE = object()


@dataclass(frozen=True, eq=False)
class Release:
    """Privatised arrays, what they cost, who made them for which request, and the ledger entry that paid."""

    request_id: str
    silo: str
    method: str
    kind: Kind
    arrays: Mapping[str, NDArray]
    event: Event
    guarantee: Guarantee
    distance: float
    releasable: bool
    ledger_entry: str
    software: str
    public_counts: tuple[int, ...] = ()
    _made_by: InitVar[object] = None  # not kept: dataclasses.replace cannot pass it on

    def __post_init__(self, _made_by: object) -> None:
        if _made_by is not _ONLY_HERE:
            raise TypeError("a Release is made by release_of() or decode_release(); it cannot be built from arrays")

    def encode(self) -> bytes:
        """The release as protobuf bytes."""
        message = release_pb2.Release(
            request_id=bytes.fromhex(self.request_id),
            silo=self.silo,
            method=self.method,
            kind=self.kind.value,
            arrays=[to_wire(name, array) for name, array in sorted(self.arrays.items())],
            event=event_to_wire(self.event),
            guarantee=guarantee_to_wire(self.guarantee),
            distance=self.distance,
            releasable=self.releasable,
            ledger_entry=bytes.fromhex(self.ledger_entry),
            software=self.software,
            public_counts=self.public_counts,
        )
        return message.SerializeToString(deterministic=True)


def release_of(
    privatised: Privatised,
    request: ReleaseRequest,
    *,
    silo: str,
    guarantee: Guarantee,
    ledger_entry: str,
    software: str,
    public_counts: tuple[int, ...] = (),
) -> Release:
    """The release that answers `request` with what the mechanism privatised, and the counts that are public anyway."""
    return Release(
        request_id=request.id,
        silo=silo,
        method=request.method,
        kind=request.kind,
        arrays=privatised.arrays,
        event=privatised.event,
        guarantee=guarantee,
        distance=privatised.distance,
        releasable=privatised.releasable,
        ledger_entry=ledger_entry,
        software=software,
        public_counts=public_counts,
        _made_by=_ONLY_HERE,
    )


def decode_release(data: bytes) -> Release:
    """Any bytes to a checked release, or one WireError."""
    message = parse(release_pb2.Release, data)
    check(len(message.request_id) == 32, "a release names its request by the 32 bytes of a SHA-256")
    check(len(message.ledger_entry) == 32, "a release names its ledger entry by the 32 bytes of a SHA-256")
    check(0.0 <= message.distance <= 1.0, f"a statistical distance of {message.distance}")
    check(all(count < 2**40 for count in message.public_counts), "a class with more than 2^40 records")
    check(len(message.software) <= 100 and message.software.isprintable(), "a release by unprintable software")
    return Release(
        request_id=message.request_id.hex(),
        silo=check_name("silo", message.silo),
        method=check_name("method", message.method),
        kind=Kind.from_wire(message.kind),
        arrays=from_wire(message.arrays),
        event=event_from_wire(message.event),
        guarantee=guarantee_from_wire(message.guarantee),
        distance=message.distance,
        releasable=message.releasable,
        ledger_entry=message.ledger_entry.hex(),
        software=message.software,
        public_counts=tuple(message.public_counts),
        _made_by=_ONLY_HERE,
    )


def sign(release: Release, key: Ed25519PrivateKey) -> bytes:
    """The bytes of a SignedRelease: what lies in the outbox and what travels."""
    payload = release.encode()
    message = release_pb2.SignedRelease(
        release=payload,
        signature=key.sign(_PREFIX + payload),
        public_key=key.public_key().public_bytes_raw(),
    )
    return message.SerializeToString(deterministic=True)


def open_signed(data: bytes, trusted: bytes | None = None) -> Release:
    """The release inside `data`; IntegrityError unless its signature holds, and by `trusted` where that is given."""
    message = parse(release_pb2.SignedRelease, data)
    check(len(message.public_key) == 32 and len(message.signature) == 64, "a signature of the wrong length")
    if trusted is not None and message.public_key != trusted:
        raise IntegrityError("the release is signed by another key than this silo's")
    try:
        Ed25519PublicKey.from_public_bytes(message.public_key).verify(message.signature, _PREFIX + message.release)
    except (InvalidSignature, ValueError):
        raise IntegrityError("the release's signature does not match its bytes") from None
    return decode_release(message.release)


def signer_of(data: bytes) -> bytes:
    """The public key that a SignedRelease carries (not yet verified)."""
    return bytes(parse(release_pb2.SignedRelease, data).public_key)
