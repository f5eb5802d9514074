"""The store keeps what silos sent, and refuses what does not belong."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpdd.common.errors import IntegrityError
from dpdd.common.wire.release import signer_of
from dpdd.server.run.roster import Roster
from dpdd.server.run.store import Store
from tests.client.silos import make_request
from tests.server.releases import signed_releases


def test_the_store_keeps_what_was_sent_and_finds_it_again(tmp_path: Path) -> None:
    data, roster = signed_releases(tmp_path, ("north", "south"))
    request = make_request()
    store = Store(tmp_path / "store")
    store.add_request(request.id, request.encode())
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
    (north,), roster = signed_releases(tmp_path / "a", ("north",))
    (second,), _ = signed_releases(tmp_path / "b", ("north",))
    request = make_request()
    store = Store(tmp_path / "store")
    store.add_request(request.id, request.encode())
    with pytest.raises(IntegrityError, match="not enrolled"):
        store.add(north, request.id, Roster({"south": bytes(32)}))
    with pytest.raises(IntegrityError, match="another key"):
        store.add(second, request.id, roster)
    with pytest.raises(IntegrityError, match="another request"):
        store.add(north, "00" * 32, roster)
    store.add(north, request.id, roster)
    impostor = Roster({"north": signer_of(second)})
    with pytest.raises(IntegrityError, match="second, different"):
        store.add(second, request.id, impostor)


def test_looking_up_who_was_asked_reads_no_whole_table(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    plans: list[str] = []
    store._db.set_trace_callback(plans.append)
    store.asked(silo="east")
    store.asked(request_id="r")
    store.asked(request_id="r", silo="east")
    store._db.set_trace_callback(None)
    asked = [statement for statement in plans if "FROM asked" in statement]
    assert len(asked) == 3
    for statement in asked:
        steps = [row[3] for row in store._db.execute(f"EXPLAIN QUERY PLAN {statement}")]
        assert not [step for step in steps if step.startswith("SCAN")], (statement, steps)
    store.close()
