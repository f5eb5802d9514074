"""What a coordinator remembers of silos' ledgers, and when it says that a silo has two of them."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dpdd.common.wire.release import Release, open_signed, stated
from dpdd.server.cli import main
from dpdd.server.run.store import Store
from dpdd.server.transport.coordinator import Coordinator
from dpdd.server.transport.ledger_positions import KnownEntry, LedgerPositions
from dpdd.server.transport.request_queue import RequestQueue
from dpdd.v1 import release_pb2
from tests.client.silos import make_request, make_silo
from tests.server.transport.worlds import sign_payload


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Coordinator]:
    coordinator = Coordinator.initialise(tmp_path / "hub")
    yield coordinator
    coordinator.close()


class Releases:
    """Releases of one silo that name any entry for any request."""

    def __init__(self, folder: Path) -> None:
        self.silo = make_silo(folder / "north")
        answer = self.silo.answer(make_request().encode())
        self._plain = release_pb2.SignedRelease.FromString(answer.data).release  # type: ignore[union-attr]
        self._folder = folder / "run" / "store"
        self._folder.mkdir(parents=True)

    def make(self, run: str, sequence: int, entry: int) -> tuple[Path, str, Release]:
        message = release_pb2.Release.FromString(self._plain)
        message.request_id = bytes.fromhex(make_request(run).id)
        message.ledger_entry = bytes([entry]) * 32
        message.payment.position = sequence
        data = sign_payload(self.silo, message.SerializeToString())
        name = f"{entry:02x}{sequence:02x}" * 16
        (self._folder / name).write_bytes(data)
        return self._folder, name, open_signed(data, self.silo.public_key)


@pytest.fixture
def releases(tmp_path: Path) -> Releases:
    return Releases(tmp_path)


def put(positions: LedgerPositions, run: str) -> None:
    positions.put(make_request(run).id, ["north"])


def test_the_highest_entry_is_remembered_over_runs_and_restarts(here: Coordinator, releases: Releases) -> None:
    positions = here.ledger_positions
    assert positions.highest("north") is None
    for run, sequence in (("a", 2), ("b", 6), ("c", 4)):
        assert positions.note(*releases.make(run, sequence, sequence)) == []
    assert positions.highest("north") == KnownEntry(6, bytes([6]) * 32)
    assert positions.highest("south") is None
    again = Coordinator(here.folder)
    assert again.ledger_positions.highest("north") == KnownEntry(6, bytes([6]) * 32)
    again.close()


def test_two_entries_of_one_number_are_a_fork(
    here: Coordinator, releases: Releases, caplog: pytest.LogCaptureFixture
) -> None:
    positions = here.ledger_positions
    assert positions.note(*releases.make("a", 2, 1)) == []
    with caplog.at_level(logging.WARNING, "dpdd.exchange"):
        (fork,) = positions.note(*releases.make("b", 2, 9))
    assert "two ledgers with an entry 2" in fork and fork in caplog.text
    assert positions.note(*releases.make("c", 4, 4)) == [fork] == positions.forks("north")  # for good
    assert positions.forks("south") == []


def test_two_releases_for_one_request_are_a_fork_in_whatever_runs(here: Coordinator, releases: Releases) -> None:
    positions = here.ledger_positions
    assert positions.note(*releases.make("a", 2, 1)) == []
    (fork,) = positions.note(*releases.make("a", 5, 2))
    assert "two different releases for request" in fork


def test_a_lower_number_for_a_request_that_was_put_later_is_a_fork(here: Coordinator, releases: Releases) -> None:
    positions = here.ledger_positions
    put(positions, "before")
    assert positions.note(*releases.make("a", 8, 1)) == []
    put(positions, "after")
    put(positions, "before")  # once more, as when a run goes on
    assert positions.note(*releases.make("before", 5, 2)) == []  # it was paid for in between
    (fork,) = positions.note(*releases.make("after", 6, 3))
    assert "with entry 6" in fork and "had entry 8" in fork


def test_the_same_release_in_another_run_is_none(here: Coordinator, releases: Releases) -> None:
    positions = here.ledger_positions
    folder, name, release = releases.make("a", 2, 1)
    assert positions.note(folder, name, release) == []
    assert positions.note(*releases.make("b", 6, 2)) == []
    put(positions, "a")
    assert positions.note(folder, name, release) == []


def test_silos_that_do_not_state_numbers_cannot_be_told_apart_by_them(here: Coordinator, releases: Releases) -> None:
    positions = here.ledger_positions
    put(positions, "a")
    for run, entry in (("a", 1), ("b", 2)):
        assert positions.note(*releases.make(run, 0, entry)) == []
    assert positions.highest("north") is None and len(positions.stored("north", b"")) == 2


def test_the_queue_notes_what_came_and_what_a_crash_left_out(
    here: Coordinator, releases: Releases, tmp_path: Path
) -> None:
    folder = tmp_path / "elsewhere" / "store"
    queue = RequestQueue(folder, here.ledger_positions)
    for number, run in enumerate(("a", "b"), start=1):
        source, name, release = releases.make(run, 2 * number, number)
        queue.ask(release.request_id, make_request(run).encode(), ["north"])
        queue.adopt(source / name, name, release.request_id, "north")
    queue.close()
    assert here.ledger_positions.highest("north") == KnownEntry(4, bytes([2]) * 32)
    with sqlite3.connect(here.folder / "state" / "registry.sqlite") as db:
        db.execute("DELETE FROM paid WHERE sequence = 4")
    db.close()
    assert here.ledger_positions.highest("north") == KnownEntry(2, bytes([1]) * 32)
    RequestQueue(folder, here.ledger_positions).close()
    assert here.ledger_positions.highest("north") == KnownEntry(4, bytes([2]) * 32)


def test_releases_of_runs_before_are_given_back_too(here: Coordinator, releases: Releases) -> None:
    store = Store(here.folder / "runs" / "old" / "store")
    source, name, release = releases.make("a", 2, 1)
    store.adopt(source / name, name, release.request_id, "north")
    store.close()
    (manifest,) = here.ledger_positions.stored("north", b"")
    assert manifest.sha256 == name and manifest.request_id == release.request_id
    data = here.ledger_positions.piece("north", bytes.fromhex(name), 0, 1 << 20)
    assert len(data) == manifest.size and stated(here.folder / "runs" / "old" / "store" / name).silo == "north"
    assert here.ledger_positions.stored("north", bytes.fromhex(name)) == []


def test_a_fork_is_in_the_store_for_the_card_and_in_the_status(
    here: Coordinator, releases: Releases, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here.registry.add_key("north", releases.silo.public_key)
    folder = tmp_path / "run2" / "store"
    queue = RequestQueue(folder, here.ledger_positions)
    for run, entry in (("a", 1), ("b", 2)):
        source, name, release = releases.make(run, 2, entry)
        queue.ask(release.request_id, make_request(run).encode(), ["north"])
        queue.adopt(source / name, name, release.request_id, "north")
    queue.close()
    later = RequestQueue(tmp_path / "run3" / "store", here.ledger_positions)
    later.ask(make_request("c").id, make_request("c").encode(), ["north"])
    later.close()
    (fork,) = here.ledger_positions.forks("north")
    for each in (folder, tmp_path / "run3" / "store"):
        store = Store(each)
        assert store.warnings(["north", "south"]) == [fork] and store.warnings(["south"]) == []
        store.close()
    assert main(["status", "--coordinator", str(here.folder), "--json"]) == 0
    (silo,) = json.loads(capsys.readouterr().out)["silos"]
    assert (silo["ledger_entries"], silo["forks"]) == (2, [fork])


def test_a_registry_of_an_earlier_version_gets_the_tables(here: Coordinator, tmp_path: Path) -> None:
    path = here.folder / "state" / "registry.sqlite"
    with sqlite3.connect(path) as db:
        for table in ("paid", "asked_at", "forks"):
            db.execute(f"DROP TABLE {table}")
    db.close()
    again = Coordinator(here.folder)
    assert again.ledger_positions.highest("north") is None
    again.close()


def test_a_release_without_a_payment_is_noted_without_a_number(here: Coordinator, releases: Releases) -> None:
    folder, name, release = releases.make("a", 3, 1)
    assert release.payment is not None and replace(release.payment, position=0).position == 0
    message = release_pb2.Release.FromString(release_pb2.SignedRelease.FromString((folder / name).read_bytes()).release)
    message.ClearField("payment")
    plain = open_signed(sign_payload(releases.silo, message.SerializeToString()))
    assert here.ledger_positions.note(folder, name, plain) == []
    assert here.ledger_positions.highest("north") is None
