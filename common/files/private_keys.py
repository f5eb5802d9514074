"""Private keys in files, in one place: PKCS#8 as PEM, for the owner alone, encrypted where there is a passphrase.

Whether a key is encrypted stands in its file, so a passphrase is looked for only when one is needed, in this order: the
file that `$DPDD_PASSPHRASE_FILE` names, the file that a setting names, systemd's credential `dpdd-passphrase`, a
prompt. The keys of one folder have one passphrase.

>>> import pathlib, tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = pathlib.Path(folder, "key.pem")
...     _ = path.write_bytes(key_pem(Ed25519PrivateKey.generate(), b"correct horse battery"))
...     is_encrypted(path)
True
"""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpdd.common.errors import ConfigError, IntegrityError
from dpdd.common.files.private import owners_only

FILE_VARIABLE = "DPDD_PASSPHRASE_FILE"
CREDENTIAL = "dpdd-passphrase"
LEAST_PASSPHRASE = 12
_ENCRYPTED = b"-----BEGIN ENCRYPTED PRIVATE KEY-----"
_prompted: dict[Path, bytes] = {}
"""What was typed for the keys of a folder: a command opens it more than once, and a person types once."""

PrivateKey = Ed25519PrivateKey | EllipticCurvePrivateKey


def key_pem(key: PrivateKey, passphrase: bytes | None = None) -> bytes:
    """A key as text; encrypted when there is a passphrase."""
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase is not None:
        encryption = serialization.BestAvailableEncryption(passphrase)
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def is_encrypted(path: Path) -> bool:
    """Whether the key at `path` needs a passphrase."""
    return path.exists() and path.read_bytes().startswith(_ENCRYPTED)


def load_ed25519(path: Path, what: str, maker: str, passphrase_file: Path | None = None) -> Ed25519PrivateKey:
    """The signing key at `path`, `what` for people; `maker` is the command that makes one."""
    key = _load(path, what, maker, passphrase_file)
    if not isinstance(key, Ed25519PrivateKey):
        raise IntegrityError(f"{path}: this is not an Ed25519 key")
    return key


def load_elliptic_curve(
    path: Path, what: str, maker: str, passphrase_file: Path | None = None
) -> EllipticCurvePrivateKey:
    """The key of a certificate at `path`, `what` for people; `maker` is the command that makes one."""
    key = _load(path, what, maker, passphrase_file)
    if not isinstance(key, EllipticCurvePrivateKey):
        raise IntegrityError(f"{path}: this is not an elliptic-curve key")
    return key


def _load(path: Path, what: str, maker: str, passphrase_file: Path | None) -> object:
    try:
        pem = path.read_bytes()
        owners_only(path, what)
    except FileNotFoundError:
        raise IntegrityError(f"{path}: {what} is missing; `{maker}` makes one") from None
    except OSError as error:
        raise IntegrityError(f"{path}: {what} cannot be read ({error.strerror})") from None
    encrypted = pem.startswith(_ENCRYPTED)
    secret = find_passphrase(path, passphrase_file) if encrypted else None
    try:
        return serialization.load_pem_private_key(pem, password=secret)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        _prompted.pop(path.parent, None)
        problem = "the passphrase is wrong, or the file is damaged" if encrypted else "this is not a PKCS#8 key in PEM"
        raise IntegrityError(f"{path}: {what} cannot be opened: {problem}") from None


def refuse_unencrypted(path: Path) -> None:
    """ConfigError for a key that is there unencrypted, when an encrypted one was asked for: it is not made anew."""
    if path.exists() and not is_encrypted(path):
        raise ConfigError(f"{path}: the key is there already, and not encrypted; openssl pkcs8 -topk8 encrypts it")


def find_passphrase(path: Path, passphrase_file: Path | None = None) -> bytes:
    """The passphrase of the key at `path`; ConfigError that says where one may be put."""
    named = os.environ.get(FILE_VARIABLE)
    if named:
        return _read(Path(named), checked=True)
    if passphrase_file is not None:
        return _read(passphrase_file, checked=True)
    credential = Path(os.environ.get("CREDENTIALS_DIRECTORY", "/nonexistent"), CREDENTIAL)
    if credential.exists():
        return _read(credential, checked=False)  # systemd guards it, by an access list that the mode does not show
    if path.parent not in _prompted:
        if not sys.stdin.isatty():
            raise ConfigError(
                f"{path}: the key needs a passphrase, and none is here: name its file in ${FILE_VARIABLE}, give "
                f"systemd's credential {CREDENTIAL}, or run this in a terminal"
            )
        _prompted[path.parent] = getpass.getpass(f"passphrase of {path}: ").encode()
    return _prompted[path.parent]


def new_passphrase(path: Path, passphrase_file: Path | None = None) -> bytes:
    """The passphrase for a key that is about to be made at `path`, typed twice where it is typed."""
    secret = find_passphrase(path, passphrase_file)
    if len(secret) < LEAST_PASSPHRASE:
        _prompted.pop(path.parent, None)
        raise ConfigError(f"a passphrase has at least {LEAST_PASSPHRASE} bytes, not {len(secret)}")
    if path.parent in _prompted and getpass.getpass("once more: ").encode() != secret:
        _prompted.pop(path.parent, None)
        raise ConfigError("the two passphrases differ; nothing was made")
    return secret


def _read(path: Path, *, checked: bool) -> bytes:
    """The first line of a passphrase's file."""
    try:
        if checked:
            owners_only(path, "the passphrase")
        line = path.read_bytes().split(b"\n", 1)[0].rstrip(b"\r")
    except OSError as error:
        raise ConfigError(f"{path}: the passphrase cannot be read ({error.strerror})") from None
    if not line:
        raise ConfigError(f"{path}: the first line, which is the passphrase, is empty")
    return line
