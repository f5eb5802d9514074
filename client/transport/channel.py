"""The silo's connection to its coordinator: mutual TLS with the pinned authority, and sentences for what goes wrong."""

from __future__ import annotations

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
    """The files that `join` writes."""

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

    def private(self) -> bytes:
        """The key; IntegrityError when others may read it."""
        if self.key.stat().st_mode & 0o077:
            raise IntegrityError(f"{self.key}: this key is open to others; `chmod 600 {self.key}` closes it")
        return self.key.read_bytes()


def open_channel(silo: Path, pinned: CoordinatorSettings, address: str) -> grpc.Channel:
    """A channel to the pinned coordinator. What can be checked before connecting is checked here, with clear words."""
    files = Files(silo)
    if not (files.certificate.exists() and files.authority.exists() and files.key.exists()):
        raise ConfigError(f"{files.folder}: the silo's certificate is not here; `dpdd-client join` gets one")
    try:
        authority = x509.load_pem_x509_certificate(files.authority.read_bytes())
        certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
    except ValueError:
        raise IntegrityError(f"{files.folder}: a certificate is damaged; `dpdd-client join` gets a new one") from None
    if authority.fingerprint(hashes.SHA256()).hex() != pinned.authority_sha256:
        raise IntegrityError(
            f"{files.authority} is not the authority that silo.toml pins ({pinned.authority_sha256[:16]}…)"
        )
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        raise IntegrityError(f"{files.certificate} was not signed by the coordinator's authority; join again") from None
    if certificate.not_valid_after_utc < datetime.now(UTC):
        ended = certificate.not_valid_after_utc.date()
        raise IntegrityError(f"this silo's certificate expired on {ended}; join again with a new token")
    credentials = grpc.ssl_channel_credentials(
        files.authority.read_bytes(), files.private(), files.certificate.read_bytes()
    )
    return grpc.secure_channel(address, credentials, CHANNEL)


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
