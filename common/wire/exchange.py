"""What both ends of the exchange must agree on: limits, names, join tokens, signed requests, manifests and chunks.

>>> token = Token(bytes(SECRET), bytes(32))
>>> Token.parse(str(token)) == token
True
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader, FileIO

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dpdd.common.wire.parsing import MOST_BYTES, check, parse, without
from dpdd.v1 import exchange_pb2, transfer_pb2

PORT = 7443
JOIN_PORT = 7444

SERVER_NAME = "coordinator.dpdd"
"""The name in every coordinator's certificate. The authority is private and signs for one coordinator only, so the
certificate says which role its holder has; the address may change."""

AUTHORITY_OID = "2.25.208836237713394093420433346846302394119"
"""Extension of a server certificate with its authority's certificate (DER): TLS shows a newcomer only the former, and
a join token names the latter by its SHA-256."""

CHUNK = 3 << 18
MOST_CHUNK = 1 << 20
MOST_MESSAGE = MOST_CHUNK + (1 << 12)
MOST_REQUEST = 1 << 26
MOST_PAYLOAD = MOST_BYTES
BEAT_SECONDS = 10.0

SECRET = 24
NONCE = 16
"""Bytes that name a dry round."""

_TOKEN = "dpdd-join-1."
_REQUEST_PREFIX = b"dpdd request v1\0"
_REHEARSAL_PREFIX = b"dpdd rehearsal v1\0"
_CHUNK = exchange_pb2.UploadPart.CHUNK_FIELD_NUMBER
_DATA = transfer_pb2.Chunk.DATA_FIELD_NUMBER
_HEAD = 1 << 7
"""More than a chunk needs beside its data."""


@dataclass(frozen=True)
class Token:
    """Good for one certificate: a secret, and the SHA-256 of the authority that will sign."""

    secret: bytes
    authority_sha256: bytes

    def __str__(self) -> str:
        return _TOKEN + base64.urlsafe_b64encode(self.authority_sha256 + self.secret).decode().rstrip("=")

    @property
    def hash(self) -> str:
        """What the coordinator keeps of the secret."""
        return hashlib.sha256(b"dpdd join token v1\0" + self.secret).hexdigest()

    @classmethod
    def parse(cls, text: str) -> Token:
        """The token in `text`; WireError when it is not one, or was cut short."""
        body = text.strip().removeprefix(_TOKEN)
        try:
            data = base64.urlsafe_b64decode((body + "=" * (-len(body) % 4)).encode("ascii"))
        except (binascii.Error, ValueError):
            data = b""
        whole = text.strip().startswith(_TOKEN) and len(text) < 200 and len(data) == 32 + SECRET
        check(whole, f"this is not a whole join token: it starts with {_TOKEN} and has 87 characters")
        return cls(data[32:], data[:32])


@dataclass(frozen=True)
class Envelope:
    """What a coordinator sent: a request, or a dry round (`rehearsal` names it), and whether its signature is right."""

    request: bytes
    signed: bool
    rehearsal: bytes = b""


def sign_request(request: bytes, key: Ed25519PrivateKey, rehearsal: bytes = b"") -> bytes:
    """The envelope in which a coordinator sends a request; with `rehearsal`, 16 random bytes, a dry round of it."""
    signature = key.sign(_signed_bytes(request, rehearsal))
    return exchange_pb2.RequestEnvelope(request=request, signature=signature, rehearsal=rehearsal).SerializeToString()


def open_request(envelope: bytes, key: bytes) -> Envelope:
    """What is inside, and whether the coordinator with that `key` signed it as what it says it is."""
    message = parse(exchange_pb2.RequestEnvelope, envelope, most_bytes=MOST_REQUEST + (1 << 10))
    check(len(message.rehearsal) in (0, NONCE), f"a dry round is named by {NONCE} bytes")
    try:
        signed = _signed_bytes(message.request, message.rehearsal)
        Ed25519PublicKey.from_public_bytes(key).verify(message.signature, signed)
    except (InvalidSignature, ValueError):
        return Envelope(message.request, False, message.rehearsal)
    return Envelope(message.request, True, message.rehearsal)


def _signed_bytes(request: bytes, rehearsal: bytes) -> bytes:
    return _REHEARSAL_PREFIX + rehearsal + request if rehearsal else _REQUEST_PREFIX + request


@dataclass(frozen=True)
class Manifest:
    """What is about to be uploaded, and which request it answers."""

    sha256: str
    size: int
    request_id: str

    def to_wire(self) -> transfer_pb2.Manifest:
        """As protobuf."""
        ids = {"sha256": bytes.fromhex(self.sha256), "request_id": bytes.fromhex(self.request_id)}
        return transfer_pb2.Manifest(size=self.size, **ids)

    @classmethod
    def from_wire(cls, message: transfer_pb2.Manifest) -> Manifest:
        """Checked."""
        check(len(message.sha256) == 32, "a manifest names its payload by the 32 bytes of a SHA-256")
        check(len(message.request_id) == 32, "a manifest names its request by the 32 bytes of a SHA-256")
        check(0 < message.size <= MOST_PAYLOAD, f"a payload has 1 to {MOST_PAYLOAD} bytes, not {message.size}")
        return cls(message.sha256.hex(), message.size, message.request_id.hex())


def parts(manifest: Manifest, file: FileIO | BufferedReader, offset: int, chunk: int = CHUNK) -> Iterator[bytes]:
    """The messages of an upload that starts at `offset`: the manifest, then chunks as they are read."""
    yield exchange_pb2.UploadPart(manifest=manifest.to_wire()).SerializeToString()
    name = bytes.fromhex(manifest.sha256)
    buffer = memoryview(bytearray(_HEAD + chunk))  # each chunk is read to where its head ends, and copied once
    file.seek(offset)
    while offset < manifest.size and (size := file.readinto(buffer[_HEAD:])):
        head = transfer_pb2.Chunk(payload_sha256=name, offset=offset, size=size).SerializeToString()
        head += _tag(_DATA, size)
        head = _tag(_CHUNK, len(head) + size) + head
        buffer[_HEAD - len(head) : _HEAD] = head
        yield bytes(buffer[_HEAD - len(head) : _HEAD + size])
        offset += size


@dataclass(frozen=True)
class Piece:
    """A chunk whose data is still where it arrived: payloads are large, and a copy costs as much as the network."""

    head: transfer_pb2.Chunk
    data: memoryview


def read_part(part: bytes) -> transfer_pb2.Manifest | Piece:
    """One message of an upload."""
    check(len(part) <= MOST_MESSAGE, f"a part of an upload has at most {MOST_MESSAGE} bytes, not {len(part)}")
    view = memoryview(part)
    rest, ((start, end),) = without(view, _CHUNK, most=1)
    if rest or not part:
        message = parse(exchange_pb2.UploadPart, part)
        check(message.WhichOneof("part") == "manifest" and start == end, "an upload has manifests and chunks only")
        return message.manifest
    head, ((first, last),) = without(view[start:end], _DATA, most=1)
    return Piece(parse(transfer_pb2.Chunk, head), view[start + first : start + last])


def check_chunk(piece: Piece, manifest: Manifest, received: int) -> None:
    """WireError with one sentence, unless this is the next chunk of its payload."""
    head, size = piece.head, len(piece.data)
    check(head.payload_sha256.hex() == manifest.sha256, "a chunk of another payload than its manifest's")
    check(head.offset >= received, f"a replayed chunk: byte {head.offset} came already, {received} is next")
    check(head.offset == received, f"a chunk is missing: byte {received} is next, this one starts at {head.offset}")
    check(head.size == size, f"a truncated chunk: it has {size} of {head.size} bytes; send it again")
    check(0 < size <= MOST_CHUNK, f"a chunk has 1 to {MOST_CHUNK} bytes, not {size}")
    check(received + size <= manifest.size, "a chunk that goes beyond the size in the manifest")


def _tag(field: int, size: int) -> bytes:
    """The beginning of a length-delimited protobuf field: protobuf itself would copy the data three times."""
    head = bytearray([field << 3 | 2])
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head)
