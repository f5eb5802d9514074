"""Releases: privatised arrays that a silo signed, and may send as often as it is asked.

A `Release` is made from a `Privatised` value, whose noise is in it already, or read from bytes that a silo signed.
Neither way accepts arrays, so there is no way to build one from clean sums.
"""

from __future__ import annotations

import copy
import hashlib
import mmap
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from numpy.typing import NDArray

from dpdd.common.config import one_line
from dpdd.common.errors import IntegrityError, WireError
from dpdd.common.privacy.accounting import Guarantee
from dpdd.common.privacy.events import Event
from dpdd.common.privacy.privatise import Privatised
from dpdd.common.wire.arrays import check_array, from_wire, to_wire
from dpdd.common.wire.parsing import MOST_BYTES, MOST_FIELDS, check, check_name, parse, without
from dpdd.common.wire.payment import Payment, payment_from_wire, payment_to_wire
from dpdd.common.wire.privacy import event_from_wire, event_to_wire, guarantee_from_wire, guarantee_to_wire
from dpdd.common.wire.request import Kind, ReleaseRequest
from dpdd.v1 import array_pb2, release_pb2

_PREFIX = b"dpdd release v1\0"
_ONLY_HERE = object()


@dataclass(frozen=True, eq=False)
class Release:
    """Privatised arrays, what they cost, who made them for which request, and the ledger entry that paid.

    `planned` is the event that its request asks for, once the release was found to be what was asked for
    (`dpdd.common.methods.verification`); it does not travel. Only such a release is aggregated.
    """

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
    held_out: bool = False
    payment: Payment | None = None
    planned: Event | None = None
    _made_by: InitVar[object] = None  # not kept: dataclasses.replace cannot pass it on

    def __post_init__(self, _made_by: object) -> None:
        if _made_by is not _ONLY_HERE:
            raise TypeError("a Release is made by release_of() or decode_release(); it cannot be built from arrays")

    @property
    def header(self) -> ReleaseHeader:
        """What it states, without its arrays."""
        return _header(self, {name: (str(array.dtype), array.shape) for name, array in self.arrays.items()})

    def as_planned(self, event: Event) -> Release:
        """The same, which was found to be what a request for `event` asks for."""
        found = copy.copy(self)
        object.__setattr__(found, "planned", event)
        return found

    def bare(self) -> Release:
        """The same without its arrays, for those who ask what it cost, and hold many."""
        found = copy.copy(self)
        object.__setattr__(found, "arrays", {})
        return found

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
            held_out=self.held_out,
            payment=None if self.payment is None else payment_to_wire(self.payment),
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
    held_out: bool = False,
    payment: Payment | None = None,
) -> Release:
    """The release that answers `request` with what the mechanism privatised, and the counts that are public anyway.

    `held_out` says of an evaluation that it read records which no other release reads; `payment` what the ledger's
    entry set aside.
    """
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
        held_out=held_out,
        payment=payment,
        _made_by=_ONLY_HERE,
    )


def decode_release(data: bytes) -> Release:
    """Any bytes to a checked release, or one WireError."""
    message = parse(release_pb2.Release, data)
    return _checked(message, from_wire(message.arrays))


def _checked(message: release_pb2.Release, arrays: Mapping[str, NDArray]) -> Release:
    check(len(message.request_id) == 32, "a release names its request by the 32 bytes of a SHA-256")
    check(len(message.ledger_entry) == 32, "a release names its ledger entry by the 32 bytes of a SHA-256")
    check(0.0 <= message.distance <= 1.0, f"a statistical distance of {message.distance}")
    check(all(count < 2**40 for count in message.public_counts), "a class with more than 2^40 records")
    check(
        not message.held_out or message.kind == Kind.EVALUATION.value,
        "a release that says held out, and is no evaluation",
    )
    check(len(message.software) <= 100 and message.software.isprintable(), "a release by unprintable software")
    return Release(
        request_id=message.request_id.hex(),
        silo=check_name("silo", message.silo),
        method=check_name("method", message.method),
        kind=Kind.from_wire(message.kind),
        arrays=arrays,
        event=event_from_wire(message.event),
        guarantee=guarantee_from_wire(message.guarantee),
        distance=message.distance,
        releasable=message.releasable,
        ledger_entry=message.ledger_entry.hex(),
        software=message.software,
        public_counts=tuple(message.public_counts),
        held_out=message.held_out,
        payment=payment_from_wire(message.payment) if message.HasField("payment") else None,
        _made_by=_ONLY_HERE,
    )


def sign(release: Release, key: Ed25519PrivateKey) -> bytes:
    """The bytes of a SignedRelease: what lies in the outbox and what travels."""
    payload = release.encode()
    message = release_pb2.SignedRelease(
        release=payload,
        signature=key.sign(_PREFIX + _digest(payload)),
        public_key=key.public_key().public_bytes_raw(),
    )
    return message.SerializeToString(deterministic=True)


def open_signed(data: bytes, trusted: bytes | None = None) -> Release:
    """The release inside `data`; IntegrityError unless its signature holds, and by `trusted` where that is given."""
    message = parse(release_pb2.SignedRelease, data)
    _check_signature(message, _digest(message.release), trusted)
    return decode_release(message.release)


def _digest(payload: bytes) -> bytes:
    return hashlib.sha256(release_pb2.SignedRelease(release=payload).SerializeToString()).digest()


class StreamHash:
    """The SHA-256 of a signed release as it streams by, and on the way the one that its signature is over.

    >>> stream_hash = StreamHash()
    >>> stream_hash.update(memoryview(b"\\x0a\\x03abc" + b"the rest"))
    >>> stream_hash.signed == hashlib.sha256(b"\\x0a\\x03abc").digest()
    True
    """

    def __init__(self) -> None:
        self._hash, self._at, self._head = hashlib.sha256(), 0, b""
        self._boundary: int | None = None
        self.signed = b""

    def update(self, data: memoryview) -> None:
        """The next bytes, whatever their number."""
        if self._boundary is None:
            self._head += bytes(data[: 16 - len(self._head)])
            self._boundary = _end_of_first_field(self._head)
        boundary = self._boundary
        if not self.signed and boundary is not None and boundary <= self._at + len(data) and boundary >= self._at:
            self._hash.update(data[: boundary - self._at])
            self.signed = self._hash.copy().digest()
            self._hash.update(data[boundary - self._at :])
        else:
            self._hash.update(data)
        self._at += len(data)

    def hexdigest(self) -> str:
        """Of everything."""
        return self._hash.hexdigest()


def _end_of_first_field(head: bytes) -> int | None:
    """Where the field `release` ends, from the first bytes of a SignedRelease; None when they are too few or wrong."""
    if head[:1] != b"\x0a":
        return None
    length = 0
    for index, byte in enumerate(head[1:]):
        length |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return 2 + index + length
    return None


@dataclass(frozen=True)
class ReleaseHeader:
    """What a release states, and of its arrays no more than their dtypes and shapes: small, however large they are."""

    silo: str
    request_id: str
    method: str
    kind: Kind
    event: Event
    guarantee: Guarantee
    distance: float
    releasable: bool
    public_counts: tuple[int, ...]
    ledger_entry: str
    payment: Payment | None
    arrays: Mapping[str, tuple[str, tuple[int, ...]]]


def _header(release: Release, arrays: Mapping[str, tuple[str, tuple[int, ...]]]) -> ReleaseHeader:
    return ReleaseHeader(
        release.silo,
        release.request_id,
        release.method,
        release.kind,
        release.event,
        release.guarantee,
        release.distance,
        release.releasable,
        release.public_counts,
        release.ledger_entry,
        release.payment,
        arrays,
    )


def inspect_signed(path: Path, trusted: bytes, signed: bytes) -> ReleaseHeader:
    """What `open_signed` checks, on a file and in memory that does not grow with it: no array is loaded.

    `signed` is what `StreamHash` computed on the way to the file.
    """
    return _mapped(path, lambda message: _check_signature(message, signed, trusted))


def stated(path: Path) -> ReleaseHeader:
    """The release in a file whose signature was checked when it came, without its arrays."""
    return _mapped(path, lambda _: None)


def inspect_file(path: Path, trusted: bytes) -> ReleaseHeader:
    """`inspect_signed` on a file that is read here."""
    stream_hash = StreamHash()
    try:
        with path.open("rb", buffering=0) as file:
            while piece := file.read(1 << 20):
                stream_hash.update(memoryview(piece))
    except OSError as error:
        raise WireError(f"not a release: {one_line(error)}") from None
    return inspect_signed(path, trusted, stream_hash.signed)


def _mapped(path: Path, check_signature: Callable[[release_pb2.SignedRelease], None]) -> ReleaseHeader:
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as data,
        ):
            return _inspect(data, check_signature)
    except (OSError, ValueError) as error:  # ValueError: nothing to map in an empty file
        raise WireError(f"not a release: {one_line(error)}") from None


def inspect_bytes(data: bytes, trusted: bytes | None = None) -> ReleaseHeader:
    """The same of bytes: nothing of them is copied, so that arrays can be checked before they are loaded."""
    end = _end_of_first_field(data[:16])
    check(end is not None, "a signed release starts with the release")
    with memoryview(data) as view:
        signed = hashlib.sha256(view[:end]).digest()
        return _inspect(view, lambda message: _check_signature(message, signed, trusted))


def _inspect(data: memoryview, check_signature: Callable[[release_pb2.SignedRelease], None]) -> ReleaseHeader:
    check(len(data) <= MOST_BYTES, f"a release of {len(data)} bytes; {MOST_BYTES} is the most")
    rest, (inside,) = without(data, 1, most=1)
    check(_end_of_first_field(bytes(data[:16])) == inside[1], "a signed release starts with the release")
    check_signature(parse(release_pb2.SignedRelease, rest))
    with data[inside[0] : inside[1]] as release:
        rest, spans = without(release, 5, most=MOST_FIELDS)
        arrays: dict[str, tuple[str, tuple[int, ...]]] = {}
        for start, end in spans:
            with release[start:end] as array:
                head, contents = without(array, 4, most=1)
                message = parse(array_pb2.Array, head)
                dtype = check_array(message, sum(end - start for start, end in contents), arrays)
                arrays[message.name] = str(dtype), tuple(message.shape)
        return _header(_checked(parse(release_pb2.Release, rest), {}), arrays)


def _check_signature(message: release_pb2.SignedRelease, digest: bytes, trusted: bytes | None) -> None:
    check(len(message.public_key) == 32 and len(message.signature) == 64, "a signature of the wrong length")
    if trusted is not None and message.public_key != trusted:
        raise IntegrityError("the release is signed by another key than this silo's")
    try:
        Ed25519PublicKey.from_public_bytes(message.public_key).verify(message.signature, _PREFIX + digest)
    except (InvalidSignature, ValueError):
        raise IntegrityError("the release's signature does not match its bytes") from None


def signer_of(data: bytes) -> bytes:
    """The public key that a SignedRelease carries (not yet verified)."""
    return bytes(parse(release_pb2.SignedRelease, data).public_key)
