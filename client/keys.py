"""The silo's Ed25519 signing key: generated here, never sent, readable by its owner only."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpdd.client.durable import write_new
from dpdd.common.errors import IntegrityError


def create_key(path: Path) -> Ed25519PrivateKey:
    """Make a new Ed25519 key at `path` (PEM, mode 0600); an existing file is never replaced."""
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_new(path, pem, mode=0o600)
    return key


def load_key(path: Path) -> Ed25519PrivateKey:
    """The key at `path`."""
    try:
        pem = path.read_bytes()
    except FileNotFoundError:
        raise IntegrityError(f"{path}: the silo's signing key is missing; `dpdd-client init` makes one") from None
    except OSError as error:
        raise IntegrityError(f"{path}: the silo's signing key cannot be read ({error.strerror})") from None
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError):
        raise IntegrityError(f"{path}: this is not an unencrypted PEM key") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise IntegrityError(f"{path}: this is not an Ed25519 key")
    if path.stat().st_mode & 0o077:
        raise IntegrityError(f"{path}: the signing key is open to others; `chmod 600 {path}` closes it")
    return key


def public_bytes(key: Ed25519PrivateKey) -> bytes:
    """The 32 bytes that verify this key's signatures."""
    return key.public_key().public_bytes_raw()
