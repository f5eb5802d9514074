"""Random numbers that a test chose: 64-bit words, one after the other."""

from __future__ import annotations


class Scripted:
    """Entropy that plays back what a test wrote down."""

    releasable = False

    def __init__(self, *words: int) -> None:
        self._bytes = b"".join(word.to_bytes(8, "little") for word in words)

    def take(self, count: int) -> bytes:
        taken, self._bytes = self._bytes[:count], self._bytes[count:]
        assert len(taken) == count
        return taken

    @property
    def spent(self) -> bool:
        return not self._bytes
