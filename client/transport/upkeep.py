"""Keeping a silo's certificate good: it is renewed in time, and a node notices one that was renewed beside it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import grpc
from cryptography import x509

from dpdd.client.transport.channel import Files, explain
from dpdd.client.transport.renewal import renew
from dpdd.common.errors import DpddError
from dpdd.common.files.certificates import expiry_warning, life, renewal_due

log = logging.getLogger("dpdd.node")

TRY_AGAIN = timedelta(hours=1)


class CertificateUpkeep:
    """For a node that calls `connecting` before it connects, and `beat` every now and then."""

    def __init__(
        self,
        files: Files,
        silo: str,
        say: Callable[[str], None],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._files, self._silo, self._say, self._clock = files, silo, say, clock
        self._connected: x509.Certificate | None = None
        self._tried: datetime | None = None

    def connecting(self) -> None:
        """Remember which certificate is shown."""
        self._connected = self._newest()

    def outdated(self) -> bool:
        """Whether there is a newer certificate than the one that was shown."""
        newest = self._newest()
        return newest is not None and newest != self._connected

    def beat(self, channel: grpc.Channel) -> None:
        """Renew the certificate when it is time, or try to, once an hour."""
        now, newest = self._clock(), self._newest()
        if newest is None or not renewal_due(newest, now):
            return
        if self._tried is not None and now - self._tried < TRY_AGAIN:
            return
        self._tried = now
        try:
            self._say(f"the certificate was renewed: it ends on {renew(self._files, self._silo, channel).date()}")
        except grpc.RpcError as error:
            self._failed(explain(error), newest, now)
        except (DpddError, OSError, ValueError) as error:  # ValueError: the channel was closed meanwhile
            self._failed(str(error), newest, now)

    def _failed(self, why: str, newest: x509.Certificate, now: datetime) -> None:
        log.warning("the certificate was not renewed: %s", why)
        for line in expiry_warning("this silo", life(newest), now, "it could not be renewed; the log says why"):
            self._say(line)

    def _newest(self) -> x509.Certificate | None:
        try:
            return self._files.shown_certificate
        except DpddError:
            return None
