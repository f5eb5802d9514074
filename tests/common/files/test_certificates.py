"""Certificates: read with a sentence for what is wrong, renewed and announced in time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from dpdd.common.errors import IntegrityError
from dpdd.common.files.certificates import WARN_WITHIN, expiry_warning, life, load_certificate, renewal_due
from dpdd.server.transport.authority import Authority

NOW = datetime(2026, 2, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("days", "words"), [(61, None), (60, "expires in 60 days"), (1, "expires in 1 days"), (-1, "expired on 2026-01-31")]
)
def test_when_it_warns(days: int, words: str | None) -> None:
    life = NOW - timedelta(days=300), NOW + timedelta(days=days)
    warnings = expiry_warning("this silo", life, NOW, "join again")
    assert len(warnings) == (words is not None)
    assert all(str(words) in warning and warning.endswith(": join again") for warning in warnings)


@pytest.mark.parametrize(("days", "warns"), [(11, False), (10, True)])
def test_a_short_life_warns_in_its_last_third(days: int, warns: bool) -> None:
    ends = NOW + timedelta(days=days)
    assert bool(expiry_warning("this silo", (ends - timedelta(days=30), ends), NOW, "join again")) == warns


def test_renewal_is_due_after_two_thirds_of_a_life() -> None:
    authority = Authority.create()
    certificate = authority.silo_certificate("north", ec.generate_private_key(ec.SECP256R1()).public_key())
    begins, ends = life(certificate)
    due = begins + 2 * (ends - begins) / 3
    assert not renewal_due(certificate, due - timedelta(seconds=1)) and renewal_due(certificate, due)
    assert ends - due > WARN_WITHIN  # who is warned could have renewed for long


def test_a_certificate_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "certificate.pem"
    with pytest.raises(IntegrityError, match=r"cannot be read.*; join again"):
        load_certificate(path, "join again")
    for content in (b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        path.write_bytes(content)
        with pytest.raises(IntegrityError, match="damaged; join again"):
            load_certificate(path, "join again")
