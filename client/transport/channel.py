"""The silo's connection to its coordinator: mutual TLS with the pinned authority, and sentences for what goes wrong."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes

from dpdd.client.config import CoordinatorSettings
from dpdd.common.config import one_line
from dpdd.common.errors import ConfigError, IntegrityError
from dpdd.common.files.certificates import load_certificate
from dpdd.common.files.private import owners_only
from dpdd.common.wire.exchange import MOST_MESSAGE, MOST_REQUEST, SERVER_NAME

CHANNEL = [
    ("grpc.ssl_target_name_override", SERVER_NAME),
    ("grpc.max_receive_message_length", MOST_REQUEST + (1 << 10)),
    ("grpc.max_send_message_length", MOST_MESSAGE),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_retries", 0),  # this node has its own back-off
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]


@dataclass(frozen=True)
class Files:
    """The files that `join` and `renew` write."""

    silo: Path

    @property
    def folder(self) -> Path:
        """Below the silo's state."""
        return self.silo / "state" / "coordinator"

    @property
    def key(self) -> Path:
        """The key of the silo's certificate; it never leaves."""
        return self.folder / "key.pem"

    @property
    def certificate(self) -> Path:
        """The silo's certificate."""
        return self.folder / "certificate.pem"

    @property
    def authority(self) -> Path:
        """The coordinator's authority."""
        return self.folder / "authority.pem"

    @property
    def renewed(self) -> Path:
        """Key and certificate since the last renewal, in place of those that `join` got."""
        return self.folder / "renewed.pem"

    @property
    def next_key(self) -> Path:
        """The key of a certificate that is being asked for."""
        return self.folder / "next-key.pem"

    @property
    def request_keys(self) -> Path:
        """How the coordinator's request key followed from the one that `silo.toml` pins."""
        return self.folder / "request-keys.pb"

    def shown(self) -> tuple[bytes, bytes]:
        """Key and certificate of the next connection; IntegrityError when others may read the key."""
        with suppress(FileNotFoundError):
            both = read_owners(self.renewed)
            start = both.find(b"-----BEGIN CERTIFICATE")
            return both[:start], both[start:]
        return self.private(), self.certificate.read_bytes()

    @property
    def shown_certificate(self) -> x509.Certificate:
        """The certificate of the next connection."""
        path = self.renewed if self.renewed.exists() else self.certificate
        return load_certificate(path, "`dpdd-client join` gets a new one")

    def private(self) -> bytes:
        """The key of the certificate that `join` got; IntegrityError when others may read it."""
        return read_owners(self.key)


def read_owners(path: Path) -> bytes:
    """A key's file; IntegrityError when others may read it."""
    owners_only(path, "this key")
    return path.read_bytes()


def open_channel(silo: Path, pinned: CoordinatorSettings, address: str) -> grpc.Channel:
    """A channel to the pinned coordinator. What can be checked before connecting is checked here, with clear words."""
    files = Files(silo)
    if not (files.certificate.exists() and files.authority.exists() and files.key.exists()):
        raise ConfigError(f"{files.folder}: the silo's certificate is not here; `dpdd-client join` gets one")
    try:
        authority = x509.load_pem_x509_certificate(files.authority.read_bytes())
        key, shown = files.shown()
        certificate = x509.load_pem_x509_certificate(shown)
    except ValueError:
        raise IntegrityError(f"{files.folder}: a certificate is damaged; `dpdd-client join` gets a new one") from None
    if authority.fingerprint(hashes.SHA256()).hex() != pinned.authority_sha256:
        raise IntegrityError(
            f"{files.authority} is not the authority that silo.toml pins ({pinned.authority_sha256[:16]}…)"
        )
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        raise IntegrityError(
            f"{files.folder}: the certificate was not signed by the coordinator's authority; join again"
        ) from None
    if certificate.not_valid_after_utc < datetime.now(UTC):
        ended = certificate.not_valid_after_utc.date()
        raise IntegrityError(f"this silo's certificate expired on {ended}; join again with a new token")
    return secure_channel(address, files.authority.read_bytes(), key, shown)


def secure_channel(address: str, authority: bytes, key: bytes, certificate: bytes) -> grpc.Channel:
    """A channel to whoever this authority vouches for; all in PEM."""
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(authority, key, certificate), CHANNEL)


def explain(error: grpc.RpcError) -> str:
    """What went wrong, for the operator."""
    details = one_line(error.details() or "")
    if error.code() is not grpc.StatusCode.UNAVAILABLE:
        return details or error.code().name.lower().replace("_", " ")
    if "CERTIFICATE_VERIFY_FAILED" in details:
        return (
            "whoever listens there is not the coordinator that this silo joined: its certificate is not one that the "
            "pinned authority gave to a coordinator"
        )
    if "Connection refused" in details:
        return "nobody listens there"
    if "Socket closed" in details or "Connection reset" in details or "GOAWAY" in details:
        return "the coordinator closed the connection; if it stays so, its log says whether it knows this certificate"
    return details
