"""The coordinator's folder: its authority, its keys and its registry of silos; `runs/` lies beside them."""

from __future__ import annotations

import json
import logging
import os
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dpdd.common.errors import ConfigError, IntegrityError, WireError
from dpdd.common.files.atomic import write_atomically
from dpdd.common.files.certificates import expiry_warning, life, load_certificate, renewal_due
from dpdd.common.files.private import folder_warning, write_private
from dpdd.common.files.private_keys import key_pem, new_passphrase, refuse_unencrypted
from dpdd.common.wire.exchange import SECRET, Token
from dpdd.common.wire.parsing import check, check_name, shown
from dpdd.common.wire.request_keys import Rotation, encode_chain
from dpdd.server.transport.authority import (
    Authority,
    load_authority,
    private_pem,
    read_private,
    requested,
)
from dpdd.server.transport.ledger_positions import LedgerPositions
from dpdd.server.transport.registry import Registry
from dpdd.server.transport.request_keys import RequestKeyFiles
from dpdd.v1 import exchange_pb2

log = logging.getLogger("dpdd.exchange")

TOKEN_HOURS = 72.0


class Coordinator:
    """An opened coordinator folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._state = folder, folder / "state"
        if not (self._state / "registry.sqlite").exists():
            raise ConfigError(f"{folder}: this is not a coordinator's folder; `dpdd-server init {folder}` makes one")
        self.authority = load_authority(folder / "authority.pem", self._state / "authority.key")
        self.registry = Registry(self._state / "registry.sqlite")
        self.ledger_positions = LedgerPositions(self.registry, folder / "runs")
        self._request_key_files = RequestKeyFiles(self._state)
        self._request_key_files.finish()
        self._request_keys = self._request_key_files.load()
        self.request_key = self._request_keys.key

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
                _write_server_certificate(state / "server.pem", authority)
            RequestKeyFiles(state).make()
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
                f"the server's certificate expired on {ends.date()}; "
                f"`dpdd-server renew --coordinator {self.folder}` makes a new one"
            )
        return both[:start], both[start:]

    @property
    def server_certificate(self) -> x509.Certificate:
        """What the server shows to silos; also when its time is over."""
        return load_certificate(self._state / "server.pem", "`dpdd-server renew` makes a new one")

    def renew_server_certificate(self) -> x509.Certificate:
        """A new one, with a new key. A server that is up shows it to whoever connects from then on."""
        return _write_server_certificate(self._state / "server.pem", self.authority)

    def keep_up(self, now: datetime) -> None:
        """What a server does every now and then: renew its certificate in time, and sign with the key that is there."""
        if renewal_due(self.server_certificate, now):
            ends = self.renew_server_certificate().not_valid_after_utc.date()
            log.info("renewed the server's certificate: it ends on %s", ends)
        if self._request_key_files.changed(self._request_keys):
            self._request_keys = self._request_key_files.load()
            self.request_key = self._request_keys.key
            log.info("requests are signed with a new key, number %d", len(self._request_keys.rotations) + 1)

    def warnings(self) -> list[str]:
        """What should be done about certificates and the state folder soon."""
        now = datetime.now(UTC)
        remedy = "`dpdd-server renew` makes a new one, and so does a server that is up"
        warnings = folder_warning(self._state) + expiry_warning(
            "the server", life(self.server_certificate), now, remedy
        )
        remedy = "make a new coordinator's folder with `dpdd-server init`, and have all silos join it"
        warnings += expiry_warning("the authority", life(self.authority.certificate), now, remedy)
        for silo in self.registry.silos():
            if silo.certificate_life is not None and not silo.revoked:
                remedy = "its `dpdd-client run` or `renew` gets a new one"
                if silo.certificate_life[1] < now:
                    remedy = f"`dpdd-server enrol {silo.name}` gives it a token to join again"
                warnings += expiry_warning(f"silo {silo.name}", silo.certificate_life, now, remedy)
        return warnings

    def rotate_request_key(self) -> Rotation:
        """A new key for requests, endorsed by the one before."""
        return self._request_key_files.rotate(self.authority.fingerprint)

    def replace_request_key(self) -> None:
        """A new key for requests that nothing endorses: all silos have to join anew."""
        self._request_key_files.start_over()

    def request_keys_after(self, known: bytes) -> bytes:
        """The chain from a key that a silo trusts to the one that signs, as bytes."""
        return encode_chain(self._request_keys.after(known))

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

        def certify(silo: str) -> tuple[str, bytes, str]:
            if name not in ("", silo):  # somebody's mistake: found out here, it does not cost the token
                raise ConfigError(
                    f"the token is for silo {silo!r}, and this silo is called {shown(name)}; give it the token of that "
                    f"name, or change the name in its silo.toml"
                )
            issued = self.authority.silo_certificate(silo, key)
            return fingerprint(issued), issued.public_bytes(serialization.Encoding.DER), expiry(issued)

        token = Token.parse(message.token)
        silo, certificate = self.registry.redeem(token.hash, message.release_public_key, certify, _info(key))
        return exchange_pb2.JoinReply(
            certificate=certificate,
            authority=self.authority.der,
            silo=silo,
            request_key=self.request_key.public_key().public_bytes_raw(),
            port=port,
        )

    def renew(self, silo: str, shown_fingerprint: str, certificate_request: bytes) -> bytes:
        """A new certificate (DER) for a silo that showed a good one. The name comes from that one alone."""
        name, key = requested(certificate_request)
        if name not in ("", silo):
            raise IntegrityError(f"a certificate request for silo {shown(name)}, sent by silo {silo}")

        def certify(holder: str) -> tuple[str, bytes, str]:
            issued = self.authority.silo_certificate(holder, key)
            return fingerprint(issued), issued.public_bytes(serialization.Encoding.DER), expiry(issued)

        return self.registry.renew(shown_fingerprint, _info(key), certify)


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of a certificate, in hexadecimal."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def _info(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def expiry(certificate: x509.Certificate) -> str:
    """When it ends, as the registry writes times."""
    return certificate.not_valid_after_utc.astimezone(UTC).isoformat(timespec="seconds")


def _ends_soon(path: Path) -> bool:
    return not path.exists() or renewal_due(load_certificate(path, "`dpdd-server renew` makes one"), datetime.now(UTC))


def _write_server_certificate(path: Path, authority: Authority) -> x509.Certificate:
    certificate, key = authority.server_certificate()
    write_private(path, private_pem(key) + certificate.public_bytes(serialization.Encoding.PEM))  # they never disagree
    return certificate
