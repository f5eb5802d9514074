"""Signed releases of small silos, for tests of what a coordinator does with them."""

from __future__ import annotations

from pathlib import Path

from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.registry import method
from dpdd.common.methods.verification import expected_of, verified
from dpdd.common.privacy.clipping import Layout
from dpdd.common.wire.release import Release, open_signed
from dpdd.common.wire.request import ReleaseRequest
from dpdd.server.run.roster import Roster
from tests.client.silos import make_request, make_silo


def signed_releases(
    folder: Path, names: tuple[str, ...], request: ReleaseRequest | None = None
) -> tuple[list[bytes], Roster]:
    """What silos of these names answer to `request`, or `make_request()`, and the roster that knows them."""
    asked = request or make_request()
    silos = [make_silo(folder / name, seed=number, classes=asked.classes) for number, name in enumerate(names)]
    return [silo.answer(asked.encode()).data for silo in silos], Roster({s.settings.name: s.public_key for s in silos})  # type: ignore[union-attr]


def as_asked(release: Release | bytes, request: ReleaseRequest) -> Release:
    """A release, or the bytes of a signed one, after it was compared with its request, as aggregation wants it."""
    return verified(open_signed(release) if isinstance(release, bytes) else release, expected_of(request))


def requested_layout(features: int = 16) -> Layout:
    """The layout of what `make_request()` asks for; other `features` give another one."""
    merf, request = method("dp-merf"), make_request()
    return merf.layout(merf.settings({**request.settings, "features": features}), RunDescription.of(request), 0)
