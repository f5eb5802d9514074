"""A finished run as its reports need it: what its folder says already. Nothing is computed anew."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpdd.common.errors import ConfigError, DataError, WireError
from dpdd.common.wire.release import stated
from dpdd.common.wire.request import ReleaseRequest, decode_request
from dpdd.server.report.card_text import release_rows
from dpdd.server.report.comparison import MARGINALS
from dpdd.server.run.folder import STORE
from dpdd.server.run.store import read_request

METRICS, CARD, AUDIT = "metrics.json", "card.json", "audit.json"
COMMAND = "command.txt"
"""The command that a run was started with, as it was typed or would be."""


@dataclass(frozen=True)
class SentRelease:
    """A signed release as it lies in the store: how many bytes left the silo, and which arrays are in them."""

    silo: str
    purpose: str
    digest: str
    bytes: int
    arrays: Mapping[str, tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class FinishedRun:
    """What a run's folder says: `metrics.json`, the card, the releases, and the first request where it is there."""

    folder: Path
    metrics: Mapping[str, Any]
    card: Mapping[str, Any]
    sent: tuple[SentRelease, ...]
    request: ReleaseRequest | None
    command: str | None
    audit: Mapping[str, Any] | None = None

    @property
    def bytes_by_silo(self) -> dict[str, int]:
        """How much left each silo in this run, signatures included."""
        found: dict[str, int] = {}
        for each in self.sent:
            found[each.silo] = found.get(each.silo, 0) + each.bytes
        return found

    @property
    def picture(self) -> Path | None:
        """What shows how the dataset looks, if there is something: a grid of images, or a table's marginals."""
        for name in ("preview.png", MARGINALS):
            if (path := self.folder / "dataset" / name).exists():
                return path
        return None


def finished_run(folder: Path) -> FinishedRun:
    """The run in `folder`; ConfigError where none is finished there, DataError where it is not what it was."""
    metrics, card = _json(folder / METRICS), _json(folder / CARD)
    if metrics is None or card is None:
        raise ConfigError(f"{folder}: no finished run is here, which would have {METRICS} and {CARD}")
    try:
        judged = card.get("evaluation_at_silos", [])
        sent = tuple(
            _sent(folder, row["silo"], "evaluation" if any(row is each for each in judged) else "dataset", digest)
            for row in release_rows(card)
            for digest in row["release_sha256"]
        )
    except (KeyError, TypeError):
        raise DataError(f"{folder / CARD}: this is no card of a run") from None
    command = folder / COMMAND
    return FinishedRun(
        folder,
        metrics,
        card,
        sent,
        _request(folder, sent),
        command.read_text(encoding="utf-8").strip() if command.exists() else None,
        _json(folder / AUDIT),
    )


def _sent(folder: Path, silo: str, purpose: str, digest: str) -> SentRelease:
    path = folder / STORE / str(digest)
    try:
        return SentRelease(silo, purpose, digest, path.stat().st_size, stated(path).arrays)
    except (OSError, WireError):
        raise DataError(f"{path}: a release that the card names cannot be read") from None


def _request(folder: Path, sent: tuple[SentRelease, ...]) -> ReleaseRequest | None:
    """What the first release answers; None where the folder does not say."""
    if not sent:
        return None
    found = read_request(folder / STORE, stated(folder / STORE / sent[0].digest).request_id)
    return None if found is None else decode_request(found)


def _json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: it cannot be read ({' '.join(str(error).split())})") from None
    if not isinstance(found, dict):
        raise DataError(f"{path}: it is no table of facts")
    return found
