"""What TLS turned away, in the log.

gRPC verifies client certificates inside its C core, which tells nobody but the process's standard error. So that
stream is read here: handshakes that failed become a line of our log, everything else goes where it went before.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from contextlib import suppress

log = logging.getLogger("dpdd.exchange")

_REASONS = (
    ("certificate has expired", "its certificate has expired"),
    ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "it shows no certificate"),
    ("unable to get local issuer certificate", "its certificate is of another authority"),
    ("self signed certificate", "its certificate is of another authority"),
    ("self-signed certificate", "its certificate is of another authority"),
    ("unsupported certificate purpose", "its certificate is not a silo's"),
    ("certificate is not yet valid", "its certificate is not valid yet (is its clock right?)"),
    ("CERTIFICATE_VERIFY_FAILED", "its certificate does not verify"),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS"),
    ("HTTP_REQUEST", "it does not speak TLS"),
    ("ALERT_UNKNOWN_CA", "it does not know this coordinator's authority"),
    ("ALERT_CERTIFICATE_UNKNOWN", "it does not accept this coordinator's certificate"),
)


_CHATTER = re.compile(r"[IW]\d{4} \d\d:\d\d:\d\d|WARNING: All log messages before absl")


def reason(line: str) -> str | None:
    """Why a handshake failed, in our words; None for any other line.

    >>> reason("… Handshake failed with error SSL_ERROR_SSL: …CERTIFICATE_VERIFY_FAILED: certificate has expired")
    'its certificate has expired'
    """
    if "Handshake failed with error" not in line:
        return None
    return next((words for mark, words in _REASONS if mark in line), "the TLS handshake failed")


def follow() -> None:
    """From now on; call it before anything imports gRPC (or Flower, which silences it)."""
    if os.environ.get("GRPC_VERBOSITY", "error") == "error":
        os.environ["GRPC_VERBOSITY"] = "info"
    original = os.dup(2)
    sys.stderr.flush()
    reader, writer = os.pipe()
    os.dup2(writer, 2)
    os.close(writer)
    sys.stderr = os.fdopen(original, "w", buffering=1, encoding="utf-8", errors="replace")
    threading.Thread(target=_read, args=(reader, original), daemon=True, name="tls-log").start()


def _read(reader: int, original: int) -> None:
    with os.fdopen(reader, "r", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            why = reason(line)
            if why is not None:
                log.warning("refused a connection: %s", why)
            elif not _CHATTER.match(line):
                with suppress(OSError):  # nobody reads standard error any more; whoever writes to it must not block
                    os.write(original, line.encode())
