"""Renewing a silo's certificate over the connection that the old one opens. A crash after any step locks nobody out.

=========== =========================================== =====================================================
step        what is durable afterwards                  a crash right after it
=========== =========================================== =====================================================
key         the key of the next certificate             the next try asks with that key
ask         at the coordinator: the new certificate     the next try gets the same one; the old one is good
keep        here: the new certificate with its key      the next connection shows it, and the old one ends
=========== =========================================== =====================================================
"""

from __future__ import annotations

from datetime import datetime

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dpdd.client.durable import exclusive, write_new
from dpdd.client.transport.channel import Files, read_owners
from dpdd.common.errors import IntegrityError, WireError
from dpdd.common.files.certificates import load_certificate
from dpdd.common.files.private import write_private
from dpdd.common.wire.parsing import parse
from dpdd.v1 import exchange_pb2

TIMEOUT = 60.0


def renew(files: Files, silo: str, channel: grpc.Channel) -> datetime:
    """Get a new certificate for a new key, and keep both; when it ends. grpc.RpcError when the coordinator refuses."""
    with exclusive(files.folder / "renewal.lock", TIMEOUT):
        key = _next_key(files)
        request = exchange_pb2.RenewRequest(certificate_request=_certificate_request(silo, key)).SerializeToString()
        reply = channel.unary_unary("/dpdd.v1.Exchange/Renew")(request, timeout=TIMEOUT)
        certificate = _checked(parse(exchange_pb2.RenewReply, reply).certificate, silo, key, files)
        both = _pem(key) + certificate.public_bytes(serialization.Encoding.PEM)
        write_private(files.renewed, both)  # one file, so that they always belong together
        files.next_key.unlink(missing_ok=True)
        return certificate.not_valid_after_utc


def _next_key(files: Files) -> ec.EllipticCurvePrivateKey:
    """The key of the next certificate: a new one, or that of a renewal that was interrupted."""
    if files.next_key.exists():
        key = serialization.load_pem_private_key(read_owners(files.next_key), password=None)
        if isinstance(key, ec.EllipticCurvePrivateKey) and key.public_key() != files.shown_certificate.public_key():
            return key
        files.next_key.unlink()
    write_new(files.next_key, _pem(ec.generate_private_key(ec.SECP256R1())), mode=0o600)
    key = serialization.load_pem_private_key(read_owners(files.next_key), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def _certificate_request(silo: str, key: ec.EllipticCurvePrivateKey) -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, silo)])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.DER)


def _checked(der: bytes, silo: str, key: ec.EllipticCurvePrivateKey, files: Files) -> x509.Certificate:
    """The certificate in a reply, if it is one that this silo can use; else the one it has stays."""
    authority = load_certificate(files.authority, "`dpdd-client join` gets it")
    try:
        certificate = x509.load_der_x509_certificate(der)
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        raise WireError("the coordinator sent a certificate that its authority did not sign") from None
    names = [name.value for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if certificate.public_key() != key.public_key() or names != [silo]:
        raise IntegrityError("the coordinator sent a certificate for another key or another silo")
    return certificate


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
