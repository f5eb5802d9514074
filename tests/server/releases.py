"""Signed releases of small silos, for tests of what a coordinator does with them."""

from __future__ import annotations

from pathlib import Path

from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.registry import method
from dpdd.common.privacy.clipping import Layout
from dpdd.server.run.roster import Roster
from tests.client.silos import make_request, make_silo


def signed_releases(folder: Path, names: tuple[str, ...]) -> tuple[list[bytes], Roster]:
    """What silos of these names answer to `make_request()`, and the roster that knows them."""
    silos = [make_silo(folder / name, seed=number) for number, name in enumerate(names)]
    request = make_request().encode()
    return [silo.answer(request).data for silo in silos], Roster({s.settings.name: s.public_key for s in silos})  # type: ignore[union-attr]


def requested_layout(features: int = 16) -> Layout:
    """The layout of what `make_request()` asks for; other `features` give another one."""
    merf, request = method("dp-merf"), make_request()
    return merf.layout(merf.settings({**request.settings, "features": features}), RunDescription.of(request), 0)
