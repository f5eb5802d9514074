"""The holdout: records that a silo sets aside, which evaluation reads and no other release does.

Which side a record is on is decided by that record alone: HMAC-SHA256, under a key of the silo's own, of its features
and label as mechanisms see them, compared with the declared share. So one record more or less moves nobody else, and
equal records are on the same side.

Privacy does not rest on the key, nor on the two sides being apart. Both releases are functions of disjoint parts of the
records, each part loses or gains at most the one record in which neighbours differ, and so each release has its own
full guarantee; the ledger adds the two up as if both read everything. The key is for the honesty of the figure: nobody
can choose models or records by the side on which they will fall.

A record is what mechanisms see. Whoever changes how images are read (`data.fit`, `data.value_range`) deals the sides
anew, and an evaluation may then read what an earlier release has read.

>>> from dpdd.client.records.records import Records
>>> records = Records(np.arange(4000, dtype=np.float32).reshape(1000, 4), np.zeros(1000, np.int64))
>>> aside = held_out(records, 0.2, bytes(32))
>>> 150 < int(aside.sum()) < 250
True
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpdd.client.durable import write_new
from dpdd.common.errors import ConfigError, IntegrityError
from dpdd.common.progress import Progress, silent

if TYPE_CHECKING:
    from dpdd.client.records.records import Records

KEY_BYTES = 32
_BATCH = 256


def held_out(records: Records, share: float, key: bytes, progress: Progress = silent) -> NDArray[np.bool_]:
    """For every record, whether it is held out."""
    limit = math.floor(math.ldexp(share, 64))
    aside = np.zeros(len(records), dtype=np.bool_)
    done = 0
    for features, labels in records.batches(_BATCH):
        for feature, label in zip(features, labels, strict=True):
            aside[done] = _draw(feature, int(label), key) < limit
            done += 1
        progress("setting records aside", done, len(records))
    return aside


def readable(records: Records, share: float, key: bytes, *, evaluation: bool, progress: Progress = silent) -> Records:
    """What a release may read: an evaluation what is held out, every other release the rest; all without a share."""
    if not share:
        return records
    aside = held_out(records, share, key, progress)
    return records.take(aside if evaluation else ~aside)


def _draw(features: NDArray[np.float32], label: int, key: bytes) -> int:
    """64 bits that look random to whoever has no key."""
    message = features.astype("<f4").tobytes() + label.to_bytes(8, "little")
    return int.from_bytes(hmac.digest(key, b"dpdd holdout v1\0" + message, "sha256")[:8], "little")


def create_key(path: Path, seed: str | None = None) -> None:
    """Make the key (mode 0600); an existing one is never replaced. With a `seed`, for simulations, it is repeatable."""
    drawn = secrets.token_bytes(KEY_BYTES) if seed is None else hashlib.sha256(f"dpdd holdout {seed}".encode()).digest()
    write_new(path, drawn, mode=0o600)


def load_key(path: Path) -> bytes:
    """The key at `path`."""
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{path}: a holdout needs the silo's key; `dpdd-client init` makes one") from None
    except OSError as error:
        raise IntegrityError(f"{path}: the holdout's key cannot be read ({error.strerror})") from None
    if len(key) != KEY_BYTES:
        raise IntegrityError(f"{path}: the holdout's key has {len(key)} bytes, not {KEY_BYTES}; restore it")
    return key


def declaration(share: float, key: bytes) -> str:
    """The share and a fingerprint of the key, for the ledger: records stay where they are as long as this does.

    >>> declaration(0.2, bytes(32))
    '0.2 ff3405f7'
    """
    return f"{share!r} {hmac.digest(key, b'dpdd holdout fingerprint', 'sha256').hex()[:8]}"
