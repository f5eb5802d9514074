"""A private certificate authority for one coordinator and its silos.

It signs the coordinator's own certificate (which may only serve) and the silos' (which may only be clients), so a silo
cannot pose as the coordinator although both chains end in the same authority.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from dpdd.common.errors import ConfigError, IntegrityError, WireError
from dpdd.common.files.certificates import load_certificate
from dpdd.common.files.private_keys import load_elliptic_curve
from dpdd.common.wire.exchange import AUTHORITY_OID, SERVER_NAME

AUTHORITY_DAYS = 3650
SERVER_DAYS = 730
SILO_DAYS = 398
MOST_CERTIFICATE_REQUEST = 1 << 12
_CLOCKS_DIFFER = timedelta(minutes=5)


@dataclass(frozen=True)
class Authority:
    """The authority's certificate and key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def create(cls) -> Authority:
        """A new one, self-signed, that can sign certificates of end points only."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(f"dpdd authority {secrets.token_hex(4)}")
        certificate = (
            _builder(subject, subject, key.public_key(), timedelta(days=AUTHORITY_DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(certificates=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    @property
    def der(self) -> bytes:
        """The certificate."""
        return self.certificate.public_bytes(serialization.Encoding.DER)

    @property
    def pem(self) -> bytes:
        """The certificate as text."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def fingerprint(self) -> bytes:
        """SHA-256 of the certificate."""
        return self.certificate.fingerprint(hashes.SHA256())

    def server_certificate(self) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        """The coordinator's own certificate, with a new key."""
        key = ec.generate_private_key(ec.SECP256R1())
        own = x509.UnrecognizedExtension(ObjectIdentifier(AUTHORITY_OID), self.der)
        builder = (
            self._end_point(SERVER_NAME, key.public_key(), timedelta(days=SERVER_DAYS), ExtendedKeyUsageOID.SERVER_AUTH)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME)]), critical=False)
            .add_extension(own, critical=False)
        )
        return builder.sign(self.key, hashes.SHA256()), key

    def silo_certificate(
        self, silo: str, public_key: ec.EllipticCurvePublicKey, lifetime: timedelta = timedelta(days=SILO_DAYS)
    ) -> x509.Certificate:
        """A certificate that says: the holder of this key is `silo`."""
        builder = self._end_point(silo, public_key, lifetime, ExtendedKeyUsageOID.CLIENT_AUTH)
        return builder.sign(self.key, hashes.SHA256())

    def _end_point(
        self, name: str, key: ec.EllipticCurvePublicKey, lifetime: timedelta, use: ObjectIdentifier
    ) -> x509.CertificateBuilder:
        left = self.certificate.not_valid_after_utc - datetime.now(UTC)  # what it signs is worth nothing after that
        return (
            _builder(_name(name), self.certificate.subject, key, min(lifetime, left))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([use]), critical=True)
        )


def requested(certificate_request: bytes) -> tuple[str, ec.EllipticCurvePublicKey]:
    """What a silo calls itself (maybe nothing) and its key, from a PKCS#10 request that the key's holder signed."""
    if len(certificate_request) > MOST_CERTIFICATE_REQUEST:
        raise WireError(f"a certificate request has at most {MOST_CERTIFICATE_REQUEST} bytes")
    try:
        request = x509.load_der_x509_csr(certificate_request)
        key, name = request.public_key(), common_name(request.subject)
        signed = request.is_signature_valid
    except (ValueError, TypeError, InvalidSignature, x509.InvalidVersion) as error:
        raise WireError(f"not a certificate request (PKCS#10): {type(error).__name__}") from None
    except Exception as error:  # unsupported algorithms come as several kinds of exceptions
        raise WireError(f"not a certificate request that can be read: {type(error).__name__}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise WireError("a silo's certificate has a P-256 key")
    if not signed:
        raise IntegrityError("the certificate request is not signed by its own key")
    return name, key


def common_name(subject: x509.Name) -> str:
    """The one common name in there, or nothing."""
    names = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A key as text, for a file that only its owner reads."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def load_authority(certificate: Path, key: Path) -> Authority:
    """The authority in these two files."""
    loaded = load_elliptic_curve(key, "the authority's key", "dpdd-server init")
    return Authority(load_certificate(certificate, "restore it from a backup"), loaded)


def read_private(path: Path) -> bytes:
    """A private file; IntegrityError when others may read it."""
    try:
        if path.stat().st_mode & 0o077:
            raise IntegrityError(f"{path}: this key is open to others; `chmod 600 {path}` closes it")
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); `dpdd-server init` makes it") from None


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, lifetime: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    start = min(now, now + lifetime) - _CLOCKS_DIFFER
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(now + lifetime)
    )


def _usage(*, certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=certificates,
        crl_sign=certificates,
        encipher_only=False,
        decipher_only=False,
    )
