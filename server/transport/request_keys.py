"""The key that signs a coordinator's requests, and how it came about: rotations, each endorsed by the key before.

=========== =========================================== ================================================
step        what is durable afterwards                  a crash right after it
=========== =========================================== ================================================
next        the new key, beside the old one             the next command forgets it: nobody was told
chain       that the old key endorsed it                the next command makes it the key
replace     the new key                                 nothing is left to do
=========== =========================================== ================================================
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpdd.common.errors import ConfigError, IntegrityError, WireError
from dpdd.common.files.atomic import sync_folder, write_atomically
from dpdd.common.files.private import write_private
from dpdd.common.files.private_keys import find_passphrase, is_encrypted, key_pem, load_ed25519
from dpdd.common.wire.request_keys import MOST_ROTATIONS, Rotation, decode_chain, encode_chain, endorse

_WHAT = "the request key"


@dataclass(frozen=True)
class RequestKeys:
    """The key that signs now, and the rotations that led to it."""

    key: Ed25519PrivateKey
    rotations: tuple[Rotation, ...]
    _seen: tuple[int, ...]

    def after(self, known: bytes) -> list[Rotation]:
        """The rotations that lead from a key to the one that signs now; none from a key that is not among them."""
        found = [index for index, each in enumerate(self.rotations) if each.old == known]
        return list(self.rotations[found[-1] :]) if found else []


class RequestKeyFiles:
    """Below a coordinator's `state/`."""

    def __init__(self, state: Path) -> None:
        self._key, self._next = state / "requests.key", state / "requests.next.key"
        self._chain, self._lock = state / "request-keys.pb", state / "request-keys.lock"

    def make(self) -> None:
        """A first key, if there is none."""
        if not self._key.exists():
            write_private(self._key, self._encrypted(Ed25519PrivateKey.generate()))

    def load(self) -> RequestKeys:
        """What signs now."""
        seen = self._stamp()
        key = load_ed25519(self._key, _WHAT, "dpdd-server init")
        mine = _public(key)
        rotations = self._read_chain()
        ends = [index for index, each in enumerate(rotations, 1) if each.new == mine]
        return RequestKeys(key, tuple(rotations[: ends[-1]] if ends else ()), seen)

    def changed(self, since: RequestKeys) -> bool:
        """Whether another process rotated the key."""
        with suppress(OSError):
            return self._stamp() != since._seen
        return False

    def finish(self) -> None:
        """Finish a rotation that a crash interrupted, unless it is going on."""
        if self._next.exists():
            with suppress(ConfigError), self._locked():
                self._finish()

    def rotate(self, authority_sha256: bytes) -> Rotation:
        """Make a new key, which the old one endorses, and sign with it from now on."""
        with self._locked():
            self._finish()
            key, rotations = load_ed25519(self._key, _WHAT, "dpdd-server init"), self._read_chain()
            if len(rotations) >= MOST_ROTATIONS:
                raise ConfigError(f"the request key was rotated {MOST_ROTATIONS} times, which is the most")
            new = Ed25519PrivateKey.generate()
            number = rotations[-1].number + 1 if rotations else 1
            rotation = endorse(key, _public(new), number=number, authority_sha256=authority_sha256)
            write_private(self._next, self._encrypted(new))
            write_atomically(self._chain, encode_chain([*rotations, rotation]))
            self._replace()
            return rotation

    def start_over(self) -> None:
        """Make a new key that nothing endorses: the old one may be in somebody else's hands."""
        with self._locked():
            self._finish()
            write_atomically(self._chain, b"")
            write_private(self._key, self._encrypted(Ed25519PrivateKey.generate()))

    def _finish(self) -> None:
        if not self._next.exists():
            return
        new, rotations = load_ed25519(self._next, _WHAT, "dpdd-server init"), self._read_chain()
        if rotations and rotations[-1].new == _public(new):
            self._replace()
        else:
            self._next.unlink()

    def _replace(self) -> None:
        self._next.replace(self._key)
        sync_folder(self._key.parent)

    def _read_chain(self) -> list[Rotation]:
        try:
            return decode_chain(self._chain.read_bytes()) if self._chain.exists() else []
        except WireError as error:
            raise IntegrityError(f"{self._chain}: {error}; restore it from a backup") from None

    def _encrypted(self, key: Ed25519PrivateKey) -> bytes:
        authority = self._key.parent / "authority.key"  # the keys of a folder have one passphrase
        return key_pem(key, find_passphrase(authority) if is_encrypted(authority) else None)

    def _stamp(self) -> tuple[int, ...]:
        status = self._key.stat()
        return status.st_mtime_ns, status.st_ino, status.st_size

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ConfigError(f"{self._lock.parent}: another dpdd-server rotates the request key") from None
            yield


def _public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()
