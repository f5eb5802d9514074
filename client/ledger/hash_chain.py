"""Ledger entries as a hash chain: each carries the hash of the entry before and the silo's signature.

An entry that is altered, left out or inserted no longer matches the hashes after it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dpdd.common.errors import LedgerError

EntryKind = Literal[
    "open", "budget", "reserve", "stage", "commit", "approve", "deny", "clock", "recovered", "resume", "written-off"
]
GENESIS = "0" * 64
_PREFIX = b"dpdd ledger v1\0"


@dataclass(frozen=True)
class Entry:
    """One line of the ledger. `hash` covers everything else, the previous entry's hash included."""

    seq: int
    time: str
    kind: EntryKind
    request_id: str
    body: dict[str, Any]
    previous: str
    hash: str
    signature: bytes


def next_entry(
    last: Entry | None,
    time: str,
    kind: EntryKind,
    request_id: str,
    body: dict[str, Any],
    key: Ed25519PrivateKey,
    beyond: int = 0,
) -> Entry:
    """The entry that follows `last`. One that resumes a rebuilt ledger has a number `beyond` those that were in use."""
    seq, previous = (last.seq + 1, last.hash) if last else (1, GENESIS)
    seq = max(seq, beyond + 1)
    digest = _digest(seq, time, kind, request_id, body, previous)
    return Entry(seq, time, kind, request_id, body, previous, digest, key.sign(_PREFIX + bytes.fromhex(digest)))


def verify(entries: Iterable[Entry], key: Ed25519PublicKey) -> None:
    """LedgerError at the first entry that is missing, altered or not signed by this silo."""
    previous, seq = GENESIS, 1
    for entry in entries:
        where = f"ledger entry {seq}"
        if entry.seq != seq and not (entry.kind == "resume" and entry.seq > seq):
            raise LedgerError(f"{where} is missing (the next one found is {entry.seq}): the ledger was tampered with")
        if entry.previous != previous:
            raise LedgerError(f"{where} does not match its hash: the ledger was tampered with")
        verify_entry(entry, key)
        previous, seq = entry.hash, entry.seq + 1


def verify_entry(entry: Entry, key: Ed25519PublicKey) -> None:
    """LedgerError unless this entry, by itself, is one that this silo wrote."""
    where = f"ledger entry {entry.seq}"
    try:
        digest = _digest(entry.seq, entry.time, entry.kind, entry.request_id, entry.body, entry.previous)
    except RecursionError:
        raise LedgerError(f"{where} is nested too deeply: the ledger was tampered with") from None
    if entry.hash != digest:
        raise LedgerError(f"{where} does not match its hash: the ledger was tampered with")
    try:
        key.verify(entry.signature, _PREFIX + bytes.fromhex(digest))
    except InvalidSignature:
        raise LedgerError(f"{where} is not signed by this silo's key: the ledger was tampered with") from None


def canonical(value: dict[str, Any]) -> str:
    """JSON with sorted keys; floats as Python prints them, which is exact."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _digest(seq: int, time: str, kind: str, request_id: str, body: dict[str, Any], previous: str) -> str:
    text = canonical(
        {"seq": seq, "time": time, "kind": kind, "request_id": request_id, "body": body, "previous": previous}
    )
    return hashlib.sha256(_PREFIX + text.encode()).hexdigest()
