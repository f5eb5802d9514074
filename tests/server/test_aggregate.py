"""Adding silos up, keeping what they sent, and refusing what does not belong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpdd.common.errors import IntegrityError
from dpdd.common.privacy.clipping import GRID
from dpdd.common.synthesis import dp_merf
from dpdd.common.wire.release import open_signed
from dpdd.server.aggregate import add_up, noise_of
from dpdd.server.roster import Roster
from dpdd.server.store import Store
from tests.client.silos import make_request, make_silo

LAYOUT = dp_merf.layout(dp_merf.MethodSettings(features=16), 3)


def answers(tmp_path: Path, names: tuple[str, ...]) -> tuple[list[bytes], Roster]:
    silos = [make_silo(tmp_path / name, seed=number) for number, name in enumerate(names)]
    request = make_request().encode()
    return [silo.answer(request).data for silo in silos], Roster({s.settings.name: s.public_key for s in silos})  # type: ignore[union-attr]


def test_the_sum_is_exact_in_integers_and_noise_adds_in_squares(tmp_path: Path) -> None:
    data, _ = answers(tmp_path, ("north", "south", "west"))
    releases = [open_signed(each) for each in data]
    total = add_up(releases, LAYOUT)
    expected = sum(release.arrays["embedding"] for release in releases)
    np.testing.assert_array_equal(total.sums["embedding"] * GRID, expected.astype(np.float64))
    assert total.noise == pytest.approx(noise_of(releases[0]) * 3**0.5)
    np.testing.assert_array_equal(add_up(releases[::-1], LAYOUT).sums["count"], total.sums["count"])


def test_arrays_of_another_shape_are_refused(tmp_path: Path) -> None:
    data, _ = answers(tmp_path, ("north",))
    with pytest.raises(IntegrityError, match="north"):
        add_up([open_signed(data[0])], dp_merf.layout(dp_merf.MethodSettings(features=17), 3))
    with pytest.raises(IntegrityError):
        add_up([], LAYOUT)


def test_the_store_keeps_what_was_sent_and_finds_it_again(tmp_path: Path) -> None:
    data, roster = answers(tmp_path, ("north", "south"))
    request = make_request()
    store = Store(tmp_path / "store")
    for each in data:
        store.add(each, request.id, roster)
        store.add(each, request.id, roster)
    store.close()
    again = Store(tmp_path / "store")
    assert [release.silo for release in again.releases(request.id, roster)] == ["north", "south"]
    digest = again.digests(request.id)["north"]
    assert again.read(digest) == data[0]
    (tmp_path / "store" / digest).write_bytes(data[0][:-1] + b"!")
    with pytest.raises(IntegrityError, match="not what its name says"):
        again.releases(request.id, roster)


def test_strangers_wrong_requests_and_second_releases_are_refused(tmp_path: Path) -> None:
    (north,), roster = answers(tmp_path / "a", ("north",))
    (second,), _ = answers(tmp_path / "b", ("north",))
    request = make_request()
    store = Store(tmp_path / "store")
    with pytest.raises(IntegrityError, match="not enrolled"):
        store.add(north, request.id, Roster({"south": bytes(32)}))
    with pytest.raises(IntegrityError, match="another key"):
        store.add(second, request.id, roster)
    with pytest.raises(IntegrityError, match="another request"):
        store.add(north, "00" * 32, roster)
    store.add(north, request.id, roster)
    impostor = Roster({"north": open_key(second)})
    with pytest.raises(IntegrityError, match="second, different"):
        store.add(second, request.id, impostor)


def open_key(data: bytes) -> bytes:
    from dpdd.common.wire.release import signer_of

    return signer_of(data)
