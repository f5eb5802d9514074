"""Entropy sources: where the randomness of noise and of samples comes from.

`SystemEntropy` is what silos use: a fresh AES-256-CTR key stream per call, keyed by the operating system's generator.
`SeededEntropy` repeats itself, so it exists for simulations only, and everything made with it says so.

>>> SeededEntropy(7).take(4) == SeededEntropy(7).take(4)
True
>>> SystemEntropy().releasable, SeededEntropy(7).releasable
(True, False)
"""

from __future__ import annotations

import hashlib
import os
from typing import Protocol

from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes


class Entropy(Protocol):
    """A source of uniformly random bytes that knows whether results made with it may be released."""

    @property
    def releasable(self) -> bool:
        """Whether noise drawn from here protects anybody."""
        ...

    def take(self, count: int) -> bytes:
        """The next `count` random bytes; never the same bytes twice."""
        ...


class SystemEntropy:
    """Cryptographic randomness; every call has its own key, which is forgotten afterwards."""

    releasable = True

    def take(self, count: int) -> bytes:
        """`count` fresh bytes."""
        return _stream(os.urandom(32), os.urandom(16)).update(bytes(count))


class SeededEntropy:
    """A repeatable stream for simulations: it must never protect real people."""

    releasable = False

    def __init__(self, seed: int, purpose: str = "") -> None:
        key = hashlib.sha256(f"dpdd simulation noise {seed} {purpose}".encode()).digest()
        self._stream = _stream(key, bytes(16))

    def take(self, count: int) -> bytes:
        """The stream's next `count` bytes."""
        return self._stream.update(bytes(count))


def _stream(key: bytes, nonce: bytes) -> CipherContext:
    return Cipher(algorithms.AES(key), modes.CTR(nonce)).encryptor()
