"""Certificates: read with a sentence for what is wrong, and announced 60 days before they end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dpdd.common.errors import IntegrityError
from dpdd.common.files.certificates import expiry_warning, load_certificate

NOW = datetime(2026, 2, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("days", "words"), [(61, None), (60, "expires in 60 days"), (1, "expires in 1 days"), (-1, "expired on 2026-01-31")]
)
def test_when_it_warns(days: int, words: str | None) -> None:
    warnings = expiry_warning("this silo", NOW + timedelta(days=days), NOW, "join again")
    assert len(warnings) == (words is not None)
    assert all(str(words) in warning and warning.endswith(": join again") for warning in warnings)


def test_a_certificate_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "certificate.pem"
    with pytest.raises(IntegrityError, match=r"cannot be read.*; join again"):
        load_certificate(path, "join again")
    for content in (b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        path.write_bytes(content)
        with pytest.raises(IntegrityError, match="damaged; join again"):
            load_certificate(path, "join again")
