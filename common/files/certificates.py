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


def expiry_warning(whose: str, ends: datetime, now: datetime, remedy: str) -> list[str]:
    """A sentence about a certificate that has expired or will within 60 days; else nothing.

    >>> expiry_warning("this silo", datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC), "join again")
    ['the certificate of this silo expires in 28 days, on 2026-03-01: join again']
    """
    if ends - now > WARN_WITHIN:
        return []
    day = ends.astimezone(UTC).date()
    when = f"expired on {day}" if ends < now else f"expires in {(ends - now).days} days, on {day}"
    return [f"the certificate of {whose} {when}: {remedy}"]
