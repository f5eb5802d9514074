"""The outbox: signed releases, on disk before one leaves. A file is never replaced: one request id, one release."""

from __future__ import annotations

import hashlib
from pathlib import Path

from dpdd.client.durable import write_new
from dpdd.common.errors import LedgerError


class Outbox:
    """The folder of signed releases, named by request id."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, request_id: str) -> bytes | None:
        """The signed release for `request_id`, if one was finished."""
        try:
            return self.path(request_id).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LedgerError(f"{self.path(request_id)}: a release cannot be read ({error.strerror})") from None

    def sha256(self, request_id: str) -> str | None:
        """The hash of the release for `request_id` as it is on disk now, if it is there."""
        try:
            with self.path(request_id).open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LedgerError(f"{self.path(request_id)}: a release cannot be read ({error.strerror})") from None

    def put(self, request_id: str, data: bytes) -> bytes:
        """Keep `data` durably; returns what the outbox holds for this id, which is the first that was put."""
        try:
            if write_new(self.path(request_id), data):
                return data
        except OSError as error:
            raise LedgerError(
                f"{self._folder}: the release cannot be written ({error.strerror}); nothing left"
            ) from None
        kept = self.get(request_id)
        assert kept is not None
        return kept

    def ids(self) -> list[str]:
        """The request ids that have a release."""
        return sorted(path.stem for path in self._folder.glob("*.release"))

    def stamp(self) -> list[int]:
        """Changes whenever a file comes or goes."""
        try:
            found = self._folder.stat()
        except OSError as error:
            raise LedgerError(f"{self._folder}: the outbox cannot be read ({error.strerror})") from None
        return [found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns]

    def clean(self) -> None:
        """Remove what an interrupted write left behind; only under the silo's lock."""
        for partial in self._folder.glob(".*.partial"):
            partial.unlink(missing_ok=True)

    def path(self, request_id: str) -> Path:
        """The file of the signed release for `request_id`, finished or not."""
        if len(request_id) != 64 or not all(c in "0123456789abcdef" for c in request_id):
            raise ValueError(f"not a request id: {request_id!r}")
        return self._folder / f"{request_id}.release"

    def size(self) -> int:
        """The bytes of all releases."""
        try:
            return sum(path.stat().st_size for path in self._folder.glob("*.release"))
        except OSError as error:
            raise LedgerError(f"{self._folder}: the outbox cannot be read ({error.strerror})") from None
