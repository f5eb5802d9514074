"""The silo's Ed25519 signing key: generated here, never sent, readable by its owner only."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpdd.client.durable import write_new
from dpdd.common.files.private_keys import key_pem, load_ed25519


def create_key(path: Path, passphrase: bytes | None = None) -> Ed25519PrivateKey:
    """Make a new Ed25519 key at `path` (PEM, mode 0600); an existing file is never replaced."""
    key = Ed25519PrivateKey.generate()
    write_new(path, key_pem(key, passphrase), mode=0o600)
    return key


def load_key(path: Path, passphrase_file: Path | None = None) -> Ed25519PrivateKey:
    """The key at `path`."""
    return load_ed25519(path, "the silo's signing key", "dpdd-client init", passphrase_file)


def public_bytes(key: Ed25519PrivateKey) -> bytes:
    """The 32 bytes that verify this key's signatures."""
    return key.public_key().public_bytes_raw()
