"""The holdout: records that a silo sets aside, which evaluation reads and no other release does.

Which side a record is on is decided by that record alone: HMAC-SHA256, under a key of the silo's own, of its features
and label as mechanisms see them, compared with the declared share. So one record more or less moves nobody else, and
equal images are on the same side.

Equal rows of a table are mostly different people in the same cells, and each has a side of its own, or whole kinds of
rows would be held out: copies are numbered, and the number is hashed too. With one copy less the others keep the
numbers from 0 on, so as collections of records the two sides lose one record together, and nothing depends on which of
several equal records it was.

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
from collections.abc import Iterator
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
_WORDS = 4
"""Of 64 bits, in a digest."""


def held_out(records: Records, share: float, key: bytes, progress: Progress = silent) -> NDArray[np.bool_]:
    """For every record, whether it is held out."""
    limit = math.floor(math.ldexp(share, 64))
    digests = np.zeros((len(records), _WORDS), dtype="<u8")
    done = 0
    for features, labels in records.batches(_BATCH):
        for feature, label in zip(features, labels, strict=True):
            digests[done] = np.frombuffer(_digest(feature, int(label), key), dtype="<u8")
            done += 1
        progress("setting records aside", done, len(records))
    aside: NDArray[np.bool_] = digests[:, 0].astype(np.uint64) < np.uint64(limit)
    if records.is_table:
        for at, copy in _copies(digests):
            aside[at] = _draw_copy(digests[at].tobytes(), copy, key) < limit
    return aside


def readable(records: Records, share: float, key: bytes, *, evaluation: bool, progress: Progress = silent) -> Records:
    """What a release may read: an evaluation what is held out, every other release the rest; all without a share."""
    if not share:
        return records
    aside = held_out(records, share, key, progress)
    return records.take(aside if evaluation else ~aside)


def _digest(features: NDArray[np.float32], label: int, key: bytes) -> bytes:
    """Bits that look random to whoever has no key; the first 64 of them decide."""
    message = features.astype("<f4").tobytes() + label.to_bytes(8, "little")
    return hmac.digest(key, b"dpdd holdout v1\0" + message, "sha256")


def _draw_copy(digest: bytes, copy: int, key: bytes) -> int:
    """64 bits for a record of which there are `copy` others before it."""
    message = b"dpdd holdout copy v1\0" + digest + copy.to_bytes(8, "little")
    return int.from_bytes(hmac.digest(key, message, "sha256")[:8], "little")


def _copies(digests: NDArray[np.uint64]) -> Iterator[tuple[int, int]]:
    """The position of every record that equals an earlier one, and how many of those there are."""
    order = np.lexsort(digests.T)  # stable: equal ones stay in their order
    ordered = digests[order]
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    starts = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
    for place in np.flatnonzero(~first):
        yield int(order[place]), int(place - starts[place])


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
