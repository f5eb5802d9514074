"""Request keys that follow one another: each new one is endorsed by the one before, so that a silo which trusts one key
can be led to the newest, and to no other.

>>> from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
>>> first, second = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
>>> pinned = Trusted(first.public_key().public_bytes_raw())
>>> rotation = endorse(first, second.public_key().public_bytes_raw(), number=1, authority_sha256=bytes(32))
>>> pinned.follow([rotation], bytes(32)).key == second.public_key().public_bytes_raw()
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dpdd.common.errors import IntegrityError
from dpdd.common.wire.parsing import check, parse
from dpdd.v1 import exchange_pb2

MOST_ROTATIONS = 1000
MOST_CHAIN = 1 << 18
_PREFIX = b"dpdd request key v1\0"


@dataclass(frozen=True)
class Rotation:
    """One step from an old request key to a new one, by the old key's word."""

    number: int
    old: bytes
    new: bytes
    signature: bytes

    def signed(self, authority_sha256: bytes) -> bytes:
        """What the old key signs: for one coordinator, at one place of the order."""
        return _PREFIX + authority_sha256 + self.number.to_bytes(8, "big") + self.old + self.new


def endorse(key: Ed25519PrivateKey, new: bytes, *, number: int, authority_sha256: bytes) -> Rotation:
    """The word of `key` for the `new` public key."""
    rotation = Rotation(number, key.public_key().public_bytes_raw(), new, b"")
    return Rotation(number, rotation.old, new, key.sign(rotation.signed(authority_sha256)))


@dataclass(frozen=True)
class Trusted:
    """The key that a silo takes requests from, and which rotation brought it; 0 where it is the pinned one."""

    key: bytes
    number: int = 0

    def follow(self, rotations: Sequence[Rotation], authority_sha256: bytes) -> Trusted:
        """The key to which these lead; IntegrityError unless each continues from the one before."""
        at = self
        for rotation in rotations:
            if rotation.old != at.key:
                raise IntegrityError("a rotation of the request key does not continue from the key that is trusted")
            if rotation.number <= at.number or (at.number and rotation.number != at.number + 1):
                raise IntegrityError(f"rotation {rotation.number} of the request key does not come after {at.number}")
            try:
                verifier = Ed25519PublicKey.from_public_bytes(rotation.old)
                verifier.verify(rotation.signature, rotation.signed(authority_sha256))
            except (InvalidSignature, ValueError):
                raise IntegrityError(
                    f"rotation {rotation.number} of the request key is not signed by the key before"
                ) from None
            at = Trusted(rotation.new, rotation.number)
        return at


def encode_chain(rotations: Sequence[Rotation]) -> bytes:
    """As bytes, for a file or a silo."""
    chain = exchange_pb2.RequestKeyChain()
    for each in rotations:
        chain.rotations.add(number=each.number, old_key=each.old, new_key=each.new, signature=each.signature)
    return chain.SerializeToString()


def decode_chain(data: bytes) -> list[Rotation]:
    """What `encode_chain` wrote; WireError for anything else. Signatures are not verified here."""
    chain = parse(exchange_pb2.RequestKeyChain, data, most_bytes=MOST_CHAIN)
    check(len(chain.rotations) <= MOST_ROTATIONS, f"a request key is rotated at most {MOST_ROTATIONS} times")
    rotations = [Rotation(each.number, each.old_key, each.new_key, each.signature) for each in chain.rotations]
    for each in rotations:
        sizes = (len(each.old), len(each.new), len(each.signature))
        check(sizes == (32, 32, 64), "a rotation has keys of 32 bytes and a signature of 64")
        check(0 < each.number < 1 << 63, "rotations are numbered from 1")
    return rotations
