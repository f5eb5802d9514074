"""Where randomness comes from: a whole key of the operating system's for every call, and nothing else."""

from __future__ import annotations

import os

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dpdd.common.privacy.entropy import SeededEntropy, SystemEntropy


def test_each_call_has_a_whole_key_of_the_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    """What statistics cannot tell: bits of a guessable key look just as random."""
    drawn: list[bytes] = []

    def urandom(count: int) -> bytes:
        drawn.append(bytes(np.random.default_rng(len(drawn)).integers(0, 256, count, np.uint8)))
        return drawn[-1]

    monkeypatch.setattr(os, "urandom", urandom)
    entropy, given = SystemEntropy(), []
    for _ in range(3):
        given.append(entropy.take(100))
        assert [len(each) for each in drawn[-2:]] == [32, 16], "256 bits of key, and a counter that begins anywhere"
        key, nonce = drawn[-2:]
        assert given[-1] == Cipher(algorithms.AES(key), modes.CTR(nonce)).encryptor().update(bytes(100))
    assert len(drawn) == 6 and len(set(given)) == 3


def test_the_system_is_asked_even_where_python_was_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is forked twice from one state must not draw the same noise twice."""
    import random

    taken = []
    for _ in range(2):
        random.seed(1)
        np.random.seed(1)
        monkeypatch.setattr("time.time_ns", lambda: 1)
        monkeypatch.setattr("time.time", lambda: 1.0)
        taken.append(SystemEntropy().take(32))
    assert taken[0] != taken[1]


def test_a_seed_repeats_and_goes_on() -> None:
    one, other = SeededEntropy(3, "north"), SeededEntropy(3, "north")
    assert one.take(16) + one.take(16) == other.take(32)
    assert (
        SeededEntropy(3, "south").take(16) != SeededEntropy(3, "north").take(16) != SeededEntropy(4, "north").take(16)
    )
