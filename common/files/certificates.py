"""Certificates in files, and how much of their life is left."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from dpdd.common.errors import IntegrityError

WARN_WITHIN = timedelta(days=60)


def load_certificate(path: Path, remedy: str) -> x509.Certificate:
    """The certificate at `path`; IntegrityError that ends in `remedy`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise IntegrityError(f"{path}: the certificate cannot be read ({error.strerror}); {remedy}") from None
    try:
        return x509.load_pem_x509_certificate(data[max(data.find(b"-----BEGIN CERTIFICATE"), 0) :])
    except ValueError:
        raise IntegrityError(f"{path}: the certificate is damaged; {remedy}") from None


def life(certificate: x509.Certificate) -> tuple[datetime, datetime]:
    """When a certificate begins and ends."""
    return certificate.not_valid_before_utc, certificate.not_valid_after_utc


def renewal_due(certificate: x509.Certificate, now: datetime) -> bool:
    """Whether two thirds of its life are over: the time to get a new one, with a third left for trying."""
    begins, ends = life(certificate)
    return now >= begins + 2 * (ends - begins) / 3


def expiry_warning(whose: str, certificate_life: tuple[datetime, datetime], now: datetime, remedy: str) -> list[str]:
    """A sentence about a certificate that has expired, or will within 60 days or the last third of its life, whichever
    is shorter; else nothing.

    >>> life = datetime(2025, 1, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC)
    >>> expiry_warning("this silo", life, datetime(2026, 2, 1, tzinfo=UTC), "join again")
    ['the certificate of this silo expires in 28 days, on 2026-03-01: join again']
    """
    begins, ends = certificate_life
    if ends - now > min(WARN_WITHIN, (ends - begins) / 3):
        return []
    day = ends.astimezone(UTC).date()
    when = f"expired on {day}" if ends < now else f"expires in {(ends - now).days} days, on {day}"
    return [f"the certificate of {whose} {when}: {remedy}"]
