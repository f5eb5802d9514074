"""The coordinator's folder: its authority, its keys and its registry of silos; `runs/` lies beside them."""

from __future__ import annotations

import json
import os
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpdd.common.errors import ConfigError, IntegrityError, WireError
from dpdd.common.files.atomic import write_atomically
from dpdd.common.files.private_keys import (
    find_passphrase,
    is_encrypted,
    key_pem,
    load_ed25519,
    new_passphrase,
    refuse_unencrypted,
)
from dpdd.common.wire.exchange import SECRET, Token
from dpdd.common.wire.parsing import check, check_name, shown
from dpdd.server.transport.authority import (
    Authority,
    load_authority,
    private_pem,
    read_private,
    requested,
    write_private,
)
from dpdd.server.transport.ledger_positions import LedgerPositions
from dpdd.server.transport.registry import Registry
from dpdd.v1 import exchange_pb2

TOKEN_HOURS = 72.0
_RENEW_WITHIN = timedelta(days=60)


class Coordinator:
    """An opened coordinator folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._state = folder, folder / "state"
        if not (self._state / "registry.sqlite").exists():
            raise ConfigError(f"{folder}: this is not a coordinator's folder; `dpdd-server init {folder}` makes one")
        self.authority = load_authority(folder / "authority.pem", self._state / "authority.key")
        self.registry = Registry(self._state / "registry.sqlite")
        self.ledger_positions = LedgerPositions(self.registry, folder / "runs")
        self.request_key = load_ed25519(self._state / "requests.key", "the request key", "dpdd-server init")

    @classmethod
    def initialise(cls, folder: Path, *, encrypt_keys: bool = False) -> Coordinator:
        """Make what is missing; a server certificate that ends soon is renewed. The authority is never replaced."""
        state = folder / "state"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            state.mkdir(mode=0o700, exist_ok=True)
            state.chmod(0o700)
            if encrypt_keys:
                refuse_unencrypted(state / "authority.key")
            if not (state / "authority.key").exists():
                secret = new_passphrase(state / "authority.key") if encrypt_keys else None
                authority = Authority.create()
                Registry(state / "registry.sqlite").close()
                write_atomically(folder / "authority.pem", authority.pem)
                write_private(state / "authority.key", key_pem(authority.key, secret))
            if not (state / "registry.sqlite").exists():  # a new one would forget who was revoked
                raise IntegrityError(
                    f"{state / 'registry.sqlite'}: the registry of silos is gone; restore it from a backup"
                )
            authority = load_authority(folder / "authority.pem", state / "authority.key")
            if _ends_soon(state / "server.pem"):
                certificate, key = authority.server_certificate()
                text = certificate.public_bytes(serialization.Encoding.PEM)
                write_private(state / "server.pem", private_pem(key) + text)  # in one file: they never disagree
            if not (state / "requests.key").exists():
                request_key = Ed25519PrivateKey.generate()
                encrypted = is_encrypted(state / "authority.key")
                secret = find_passphrase(state / "authority.key") if encrypted else None
                write_private(state / "requests.key", key_pem(request_key, secret))
        except OSError as error:
            raise ConfigError(f"{folder}: cannot be made ({error.strerror})") from None
        return cls(folder)

    def close(self) -> None:
        """Let go of the registry."""
        self.registry.close()

    @property
    def server_key_and_certificate(self) -> tuple[bytes, bytes]:
        """What the server shows to silos, as PEM; ConfigError when its time is over."""
        both = read_private(self._state / "server.pem")
        start = both.index(b"-----BEGIN CERTIFICATE")
        ends = x509.load_pem_x509_certificate(both[start:]).not_valid_after_utc
        if ends < datetime.now(UTC):
            raise ConfigError(
                f"the server's certificate expired on {ends.date()}; `dpdd-server init {self.folder}` renews it"
            )
        return both[:start], both[start:]

    @property
    def serving_file(self) -> Path:
        """Where a running server says where it listens."""
        return self._state / "serving.json"

    def serving(self) -> dict[str, Any] | None:
        """Where a server listens now, and its process id; None when none does."""
        try:
            address: dict[str, Any] = json.loads(self.serving_file.read_text())
            os.kill(address["pid"], 0)
            return address
        except PermissionError:
            return address
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def submitted_file(self) -> Path:
        """The queue of runs of a standing server."""
        return self._state / "runs.sqlite"

    @property
    def standing_lock(self) -> Path:
        """Held by a standing server."""
        return self._state / "serve.lock"

    @property
    def log_file(self) -> Path:
        """What was refused, and what came."""
        return self._state / "exchange.log"

    def enrol(self, silo: str, lifetime: timedelta = timedelta(hours=TOKEN_HOURS)) -> Token:
        """A one-time token with which `silo` can join. Only its hash is kept."""
        try:
            check_name("silo name", silo)
        except WireError as error:
            raise ConfigError(str(error)) from None
        token = Token(secrets.token_bytes(SECRET), self.authority.fingerprint)
        self.registry.enrol(silo, token.hash, lifetime)
        return token

    def join(self, message: exchange_pb2.JoinRequest, port: int) -> exchange_pb2.JoinReply:
        """A certificate for the key in the request, if its token is good. The name comes from the token alone."""
        name, key = requested(message.certificate_request)
        check(len(message.release_public_key) == 32, "a release key is the 32 bytes of an Ed25519 public key")
        info = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)

        def certify(silo: str) -> tuple[str, bytes, str]:
            if name not in ("", silo):  # somebody's mistake: found out here, it does not cost the token
                raise ConfigError(
                    f"the token is for silo {silo!r}, and this silo is called {shown(name)}; give it the token of that "
                    f"name, or change the name in its silo.toml"
                )
            issued = self.authority.silo_certificate(silo, key)
            return fingerprint(issued), issued.public_bytes(serialization.Encoding.DER), expiry(issued)

        token = Token.parse(message.token)
        silo, certificate = self.registry.redeem(token.hash, message.release_public_key, certify, info)
        return exchange_pb2.JoinReply(
            certificate=certificate,
            authority=self.authority.der,
            silo=silo,
            request_key=self.request_key.public_key().public_bytes_raw(),
            port=port,
        )


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of a certificate, in hexadecimal."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def expiry(certificate: x509.Certificate) -> str:
    """When it ends, as the registry writes times."""
    return certificate.not_valid_after_utc.astimezone(UTC).isoformat(timespec="seconds")


def _ends_soon(path: Path) -> bool:
    if not path.exists():
        return True
    return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc < datetime.now(UTC) + _RENEW_WITHIN
