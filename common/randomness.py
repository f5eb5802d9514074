"""Public random numbers that silo and coordinator draw alike, on any machine and with any NumPy.

(NumPy's own normal generator may change between versions; two sides with different versions would then compute
different statistics.)

>>> gaussians(7, "projection", (2, 2)).tolist() == gaussians(7, "projection", (2, 2)).tolist()
True
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray


def uniforms(seed: int, purpose: str, count: int) -> NDArray[np.float64]:
    """`count` numbers in (0, 1), of 52 bits each; another `purpose` gives others."""
    key = hashlib.sha256(f"dpdd public {seed} {purpose}".encode()).digest()
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(8 * count))
    words = np.frombuffer(stream, dtype="<u8")
    return ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def gaussians(seed: int, purpose: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Standard normal numbers (Box and Muller)."""
    count = math.prod(shape)
    half = (count + 1) // 2
    drawn = uniforms(seed, purpose, 2 * half)
    radius = np.sqrt(-2.0 * np.log(drawn[:half]))
    angle = 2.0 * math.pi * drawn[half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count].reshape(shape)


def subseed(seed: int, purpose: str) -> int:
    """A 63-bit seed for a library's own generator, where only this side uses it."""
    return int.from_bytes(hashlib.sha256(f"dpdd subseed {seed} {purpose}".encode()).digest()[:8], "big") >> 1
