"""Dry rounds over TLS: reports of this round and of no other, by the silo that was asked, at no cost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from dpdd.client.silo import Silo
from dpdd.common import flower
from dpdd.common.wire.exchange import sign_request
from dpdd.common.wire.plan import PlanReport, decode_report, encode_report, report_to_wire
from dpdd.server.run.store import Store
from dpdd.server.transport.grid import Deadline, ExchangeGrid
from dpdd.server.transport.request_queue import RequestQueue
from dpdd.v1 import exchange_pb2
from tests.client.silos import make_request
from tests.server.transport.worlds import World, entries, running, until, world

REPORT = "/dpdd.v1.Exchange/Report"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("rehearsal")) as a_world:
        yield a_world


@pytest.fixture(scope="module")
def north(here: World) -> Silo:
    return here.silo("north")


def rehearse(here: World, request: bytes, seconds: float = 120.0) -> dict[str, PlanReport | str]:
    """What each silo of the roster reports, or why it does not; those who say nothing are not in it."""
    grid = ExchangeGrid(here.queue, here.coordinator.registry.roster(), Deadline(30.0))
    messages = [
        grid.create_message(flower.pack(request, "dpdd.v1.ReleaseRequest"), flower.PLAN, node, "dry round")
        for node in grid.get_node_ids()
    ]
    waiting, said, ends = set(grid.push_messages(messages)), {}, time.monotonic() + seconds
    while waiting and time.monotonic() < ends:
        for reply in grid.pull_messages(waiting):
            waiting.remove(reply.metadata.reply_to_message_id)
            who = grid.silo_of(reply.metadata.src_node_id)
            said[who] = (
                str(reply.error.reason)
                if reply.has_error()
                else decode_report(flower.unpack(reply.content, "dpdd.v1.PlanReport"))
            )
        time.sleep(0.02)
    return said


def test_silos_report_and_spend_nothing(tmp_path: Path) -> None:
    with world(tmp_path) as here:
        north, south = here.silo("north"), here.silo("south", approval="ask")
        with running(north), running(south):
            said = rehearse(here, make_request().encode())
            broke = make_request(epsilon=1.5).encode()
            poor = rehearse(here, broke)
        yes, later = said["north"], said["south"]
        assert isinstance(yes, PlanReport) and isinstance(later, PlanReport)
        assert yes.would_answer and not yes.asks_operator and later.asks_operator
        assert isinstance(poor["north"], PlanReport) and poor["north"].refusal == north.answer(broke)
        assert entries(north) == entries(south) == ["open"]
        assert not south.waiting() and not north.outbox.path(make_request().id).exists()
        assert here.releases() == [] and not here.queue.open_for("north")
        store = Store(tmp_path / "run" / "store")
        assert decode_report(store.reports()[make_request().id, "north"]) == yes
        store.close()


def test_a_silo_in_trouble_says_so_and_not_why(tmp_path: Path) -> None:
    with world(tmp_path) as here:
        north = here.silo("north")
        with running(north):
            until(lambda: here.coordinator.registry.silos()[0].last_seen)
            (north.folder / "state" / "ledger.sqlite").write_bytes(b"not a ledger")
            assert rehearse(here, make_request().encode()) == {
                "north": "the silo could not say what it would do; its own log says why"
            }


def test_who_is_away_reports_nothing_and_reports_when_it_comes(here: World, north: Silo) -> None:
    request = make_request(run="away").encode()
    assert rehearse(here, request, 0.3) == {}
    with running(north):
        said = rehearse(here, request)
    assert isinstance(said["north"], PlanReport)
    assert rehearse(here, request, 0.3) == {}  # what it said in the last round is not taken for this one


def test_reports_that_nobody_asked_for_are_refused(here: World, north: Silo) -> None:
    south = here.silo("south")
    request, other = make_request(run="hostile"), make_request(run="other")
    rehearsal = here.queue.rehearse(request.id, request.encode(), ["north"])
    report = rehearsed(north, request.encode())

    def send(silo: Silo, nonce: bytes, about: PlanReport | None) -> str:
        wire = None if about is None else report_to_wire(about)
        data = exchange_pb2.RehearsalReport(rehearsal=nonce, report=wire).SerializeToString()
        with here.channel(silo) as channel:
            try:
                channel.unary_unary(REPORT)(data, timeout=10)
            except grpc.RpcError as error:
                return str(error.details())
        return ""

    assert "no dry round of that name" in send(north, bytes(16), report)
    assert "no dry round of that name" in send(south, rehearsal.nonce, report)
    assert "sent by silo north" in send(north, rehearsal.nonce, rehearsed(south, request.encode()))
    assert "about another request" in send(north, rehearsal.nonce, rehearsed(north, other.encode()))
    assert here.queue.reported(rehearsal, "north") is None
    assert send(north, rehearsal.nonce, report) == ""
    assert here.queue.reported(rehearsal, "north") == encode_report(report)
    assert send(north, rehearsal.nonce, None) == ""  # its first word counts
    assert here.queue.reported(rehearsal, "north") == encode_report(report)
    here.queue.end_rehearsals()
    assert "no dry round of that name" in send(north, rehearsal.nonce, report)
    for fuzz in (b"", b"\xff" * 40, b"\x0a\x10" + bytes(16) + b"\x12\x02\x08\x01"):
        with here.channel(north) as channel, pytest.raises(grpc.RpcError):
            channel.unary_unary(REPORT)(fuzz, timeout=10)


def test_a_forged_dry_round_is_ignored_and_a_request_in_its_guise_is_not_answered(
    here: World, north: Silo, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that sends a request's signature with a dry round's mark, or the other way round, gets nothing."""
    request = make_request(run="forged")

    def swapped(data: bytes, key: object, rehearsal: bytes = b"") -> bytes:
        true = exchange_pb2.RequestEnvelope.FromString(sign_request(data, key, b"" if rehearsal else bytes(16)))  # type: ignore[arg-type]
        return exchange_pb2.RequestEnvelope(
            request=data, signature=true.signature, rehearsal=rehearsal
        ).SerializeToString()

    monkeypatch.setattr("dpdd.server.transport.streams.sign_request", swapped)
    before = entries(north)
    here.queue.rehearse(request.id, request.encode(), ["north"])
    here.ask(north, request=request)
    with running(north):
        until(lambda: (row := here.queue.row(request.id, "north")) is not None and row.state == "refused")
        until(lambda: "ignored a dry round" in caplog.text)
    assert entries(north) == before and not here.releases()
    here.queue.end_rehearsals()


def test_a_queue_that_was_opened_again_sends_only_what_is_asked_again(tmp_path: Path) -> None:
    """Otherwise a run that goes on would ask silos to spend before its dry round."""
    request = make_request()
    queue = RequestQueue(tmp_path / "store")
    queue.ask(request.id, request.encode(), ["north"])
    assert [row.request_id for row in queue.open_for("north")] == [request.id]
    queue.close()
    queue = RequestQueue(tmp_path / "store")
    assert queue.open_for("north") == [] and queue.row(request.id, "north") is not None
    queue.ask(request.id, request.encode(), ["north"])
    assert [row.request_id for row in queue.open_for("north")] == [request.id]
    queue.close()


def rehearsed(silo: Silo, request: bytes) -> PlanReport:
    from dpdd.client.rehearsal import rehearse as report

    return report(silo, request)
