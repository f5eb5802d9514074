"""Joining a coordinator: the silo makes its own key, gets a certificate for it, and pins whom it joined.

The join token names the coordinator's authority by its SHA-256, so nothing is sent to anybody before that authority has
shown itself. The key, the certificate and the authority are kept in `state/coordinator/`; `silo.toml` gets, for the
operator to read, the `[coordinator]` that this silo takes requests from (certificate pinning).
"""

from __future__ import annotations

import hashlib
import ssl
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID, ObjectIdentifier

from dpdd.client.config import CoordinatorSettings
from dpdd.client.durable import write_new
from dpdd.client.silo import Silo
from dpdd.client.transport.channel import CHANNEL, Files, explain, secure_channel
from dpdd.client.transport.request_keys import RequestKeys
from dpdd.common.errors import ConfigError, DpddError, IntegrityError, WireError
from dpdd.common.files.atomic import write_atomically
from dpdd.common.wire.exchange import AUTHORITY_OID, JOIN_PORT, Token
from dpdd.common.wire.parsing import parse
from dpdd.v1 import exchange_pb2

JOIN_TIMEOUT = 20.0


def join(silo: Silo, address: str, token: Token | None) -> CoordinatorSettings:
    """Join the coordinator at `address`; without a token only on this machine, and only one that lets anybody join."""
    host, port = host_and_port(address)
    if token is None and host != "127.0.0.1":
        raise ConfigError("joining without a token is for a coordinator in --loopback-demo on 127.0.0.1")
    pinned = silo.settings.coordinator
    if token is not None:
        _check_pinned(pinned, token.authority_sha256, "this token")
    authority = shown_authority(host, port)
    _check_pinned(pinned, hashlib.sha256(authority).digest(), f"the coordinator at {address}")
    if token is not None and hashlib.sha256(authority).digest() != token.authority_sha256:
        raise IntegrityError(
            f"the coordinator at {address} shows another authority than the one in the token: this is not the "
            f"coordinator that gave you the token, or somebody is in between; nothing was sent"
        )
    files = Files(silo.folder)
    key = _own_key(files)
    reply = _ask(_target(host, port), authority, _join_request(silo, key, token))
    certificate = _check(reply, silo, authority, key)
    settings = CoordinatorSettings(
        address=_target(host, reply.port),
        authority_sha256=hashlib.sha256(authority).hexdigest(),
        request_key=reply.request_key.hex(),
    )
    root = x509.load_der_x509_certificate(authority)
    if pinned is None:
        files.request_keys.unlink(missing_ok=True)  # of a coordinator that was pinned before
    else:
        _check_request_key(files, pinned, settings, (_pem(root), files.private(), _pem(certificate)))
    write_atomically(files.authority, _pem(root))
    write_atomically(files.certificate, _pem(certificate))
    files.renewed.unlink(missing_ok=True)
    if pinned is None:
        _pin(silo.folder / "silo.toml", settings)
    return pinned or settings


def _check_pinned(pinned: CoordinatorSettings | None, authority_sha256: bytes, whose: str) -> None:
    if pinned is not None and pinned.authority_sha256 != authority_sha256.hex():
        raise IntegrityError(
            f"silo.toml pins a coordinator with the authority {pinned.authority_sha256[:16]}…, and {whose} has "
            f"{authority_sha256.hex()[:16]}…; remove [coordinator] from silo.toml to change coordinators"
        )


def _check_request_key(
    files: Files, pinned: CoordinatorSettings, shown: CoordinatorSettings, identity: tuple[bytes, bytes, bytes]
) -> None:
    """Follow rotations that this silo missed; IntegrityError when none lead to the key that the coordinator shows."""
    keys = RequestKeys(files, pinned)
    if keys.key.hex() != shown.request_key:
        with secure_channel(shown.address, *identity) as channel:
            try:
                keys.refresh(channel)
            except grpc.RpcError as error:
                raise IntegrityError(f"the coordinator's request key cannot be checked: {explain(error)}") from None
    if keys.key.hex() != shown.request_key:
        raise IntegrityError(
            "the coordinator shows another request key than the one that silo.toml pins, and no rotation leads there; "
            "if it says why, remove [coordinator] from silo.toml and join with a new token"
        )


def host_and_port(address: str) -> tuple[str, int]:
    """`host:port`, where the port may be left out."""
    host, colon, port = address.rpartition(":")
    if not colon:
        host, port = address, str(JOIN_PORT)
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"{address!r} is not an address: HOST:PORT is one")
    return host.strip("[]"), int(port)


def _target(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def shown_authority(host: str, port: int) -> bytes:
    """The authority's certificate (DER) that the server at this address shows; not to be trusted by itself."""
    try:
        pem = ssl.get_server_certificate((host, port), timeout=JOIN_TIMEOUT)
        leaf = x509.load_pem_x509_certificate(pem.encode())
        extension = leaf.extensions.get_extension_for_oid(ObjectIdentifier(AUTHORITY_OID)).value
        assert isinstance(extension, x509.UnrecognizedExtension)
        x509.load_der_x509_certificate(extension.value)
        return extension.value
    except (ValueError, x509.ExtensionNotFound, ssl.SSLError):
        raise IntegrityError(f"{host}:{port} does not speak for a dpdd coordinator: is it the join port?") from None
    except OSError as error:
        raise DpddError(f"{host}:{port} cannot be reached ({error.strerror or error}); is the server up?") from None


def _own_key(files: Files) -> ec.EllipticCurvePrivateKey:
    """The key of the silo's certificate: made once, before anything is sent, and never sent."""
    files.folder.mkdir(mode=0o700, exist_ok=True)
    if not files.key.exists():
        new_key = ec.generate_private_key(ec.SECP256R1())
        encoding = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
        write_new(files.key, new_key.private_bytes(*encoding, serialization.NoEncryption()), mode=0o600)
    key = serialization.load_pem_private_key(files.private(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise IntegrityError(f"{files.key}: this is not a P-256 key")
    return key


def _join_request(silo: Silo, key: ec.EllipticCurvePrivateKey, token: Token | None) -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, silo.settings.name)])
    csr = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return exchange_pb2.JoinRequest(
        token="" if token is None else str(token),
        certificate_request=csr.public_bytes(serialization.Encoding.DER),
        release_public_key=silo.public_key,
    ).SerializeToString()


def _ask(target: str, authority: bytes, request: bytes) -> exchange_pb2.JoinReply:
    root = _pem(x509.load_der_x509_certificate(authority))
    with grpc.secure_channel(target, grpc.ssl_channel_credentials(root), CHANNEL) as channel:
        try:
            return parse(
                exchange_pb2.JoinReply, channel.unary_unary("/dpdd.v1.Enrolment/Join")(request, timeout=JOIN_TIMEOUT)
            )
        except grpc.RpcError as error:
            raise IntegrityError(f"the coordinator did not let this silo join: {explain(error)}") from None


def _check(
    reply: exchange_pb2.JoinReply, silo: Silo, authority: bytes, key: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    """The certificate in the reply, if it is for this silo and this key."""
    if reply.silo != silo.settings.name:
        raise ConfigError(
            f"the token is for silo {reply.silo!r}, and this silo is called {silo.settings.name!r}; "
            f"ask the coordinator to enrol {silo.settings.name!r}"
        )
    try:
        certificate = x509.load_der_x509_certificate(reply.certificate)
        certificate.verify_directly_issued_by(x509.load_der_x509_certificate(authority))
    except (ValueError, TypeError, InvalidSignature):
        raise WireError("the coordinator sent a certificate that its authority did not sign") from None
    if reply.authority != authority or certificate.public_key() != key.public_key() or len(reply.request_key) != 32:
        raise IntegrityError("the coordinator sent a certificate for another key or of another authority")
    if not 0 < reply.port < 65536:
        raise WireError(f"the coordinator sent a port that does not exist ({reply.port})")
    return certificate


def _pin(path: Path, settings: CoordinatorSettings) -> None:
    text = path.read_text()
    lines = [f'{name} = "{value}"' for name, value in settings.model_dump().items()]
    note = "# Written by `dpdd-client join`: requests are taken from this coordinator and from no other."
    write_atomically(path, "\n".join([text.rstrip("\n"), "", note, "[coordinator]", *lines, ""]).encode())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
