"""What a coordinator learns from a silo that works or fails: that it does, and nothing of the records."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from dpdd.common import flower  # first: it turns Flower's telemetry off

# isort: split
from flwr.app import Context, Message, Metadata, RecordDict

from dpdd.client.app import SILO_FAILED, make_app
from dpdd.client.ceilings import check_rate
from dpdd.client.policy import Refused
from dpdd.client.rehearsal import rehearse
from dpdd.client.silo import Silo
from dpdd.client.transport.node import Doing, Node
from dpdd.client.transport.node_log import keep_log
from dpdd.common.errors import ConfigError
from dpdd.common.methods.plan import ENVELOPE
from dpdd.common.wire.answer import Reason, Refusal, SignedReleaseBytes
from dpdd.common.wire.request import ReleaseRequest
from dpdd.v1 import exchange_pb2
from tests.client.silos import make_request, make_silo
from tests.server.transport.worlds import entries, running, until, world

RECORD = "patient 4711, positive"


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    log = logging.getLogger("dpdd")
    before = log.handlers[:], log.level, log.propagate
    yield
    for handler in log.handlers:
        handler.close()
    log.handlers[:], log.level, log.propagate = before


@pytest.mark.parametrize("error", [RuntimeError, ValueError, MemoryError, AssertionError])
def test_no_exception_carries_its_text_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], error: type[Exception]
) -> None:
    make_silo(tmp_path / "silo")

    def fail(*_: object, **__: object) -> None:
        raise error(RECORD)

    monkeypatch.setattr(Silo, "answer", fail)
    metadata = Metadata(1, "request", 1, 2, "", "", 0.0, 3600.0, flower.ACTION)
    content = flower.pack(make_request().encode(), "dpdd.v1.ReleaseRequest")
    message = Message(content=content, metadata=metadata)  # type: ignore[call-overload]
    context = Context(1, 2, {"silo": str(tmp_path / "silo")}, RecordDict(), {})
    keep_log(tmp_path / "node.log")
    reply = make_app()(message, context)
    log = (tmp_path / "node.log").read_text()
    assert reply.has_error() and reply.error.code == SILO_FAILED
    assert reply.error.reason == "the silo could not answer; its own log says why"
    assert error.__name__ in log and "in fail" in log and RECORD not in log  # the type and the place, for the operator
    assert RECORD not in capfd.readouterr().err


def watch_beats(node: Node) -> list[bytes]:
    """All that a heartbeat could say from now on, after each step of progress."""
    beats: list[bytes] = []
    progress = node._progress

    def watched(what: str, done: int, of: int) -> None:
        progress(what, done, of)
        beats.append(node._beat())

    node._progress = watched  # type: ignore[method-assign]
    return beats


def test_a_heartbeat_says_nothing_that_depends_on_the_records(tmp_path: Path) -> None:
    """What the coordinator may read in 20 records' beats it reads in 300 records' too, whenever it reads."""
    said: dict[int, set[bytes]] = {}
    for records in (20, 300):
        with world(tmp_path / str(records)) as here:
            silo = here.silo("north", records=records)
            with running(silo) as node:
                beats = watch_beats(node)
                request_id = here.ask(silo).id
                until(partial(here.queue.digest, request_id, "north"))
                assert len(beats) > 3
                said[records] = set(beats)
    assert said[20] == said[300] == {exchange_pb2.Beat(doing="working").SerializeToString()}
    assert {word.value for word in Doing} == {"idle", "working", "in trouble"}


def refused_unpaid(silo: Silo, request: ReleaseRequest, why: str) -> None:
    """`request` is refused alike in a dry round and in earnest, and the ledger is as it was."""
    before = entries(silo)
    answer, report = silo.answer(request.encode()), rehearse(silo, request.encode())
    assert isinstance(answer, Refusal) and answer.reason is Reason.NOT_ALLOWED and why in answer.message
    assert report.refusal is not None and report.refusal.message == answer.message
    assert entries(silo) == before


def test_epsilon_shaving_writes_no_ledger_and_plans_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand requests at a thousandth of the budget would cost the silo a thousand passes over its records."""
    silo = make_silo(tmp_path / "silo", extra="least_epsilon_per_request = 0.1")
    monkeypatch.setattr("dpdd.client.answering.mechanism", None)  # nothing gets that far
    refused_unpaid(silo, make_request(epsilon=0.001), "from 0.1 up")
    monkeypatch.undo()
    assert isinstance(silo.answer(make_request(epsilon=0.1).encode()), SignedReleaseBytes)


def test_the_requests_of_a_day_are_counted_in_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silo = make_silo(tmp_path / "silo", extra="requests_per_day = 2")
    first, third = make_request("a", epsilon=0.1), make_request("c", epsilon=0.1)
    for request in (first, make_request("b", epsilon=0.1)):
        assert isinstance(silo.answer(request.encode()), SignedReleaseBytes)
    monkeypatch.setattr("dpdd.client.answering.mechanism", None)  # refused before anything is planned
    refused_unpaid(silo, third, "2 requests within 24 hours")
    monkeypatch.undo()
    assert isinstance(silo.answer(first.encode()), SignedReleaseBytes)  # the same bytes again are no new request
    ledger = silo.ledger()
    try:
        check_rate(third, silo.settings.policy, ledger, datetime.now(UTC) + timedelta(days=2))
        with pytest.raises(Refused):  # a clock that was set back does not open the door
            check_rate(third, silo.settings.policy, ledger, datetime.now(UTC) - timedelta(days=9))
    finally:
        ledger.close()


def test_the_outbox_cannot_be_filled(tmp_path: Path) -> None:
    quota = 3 * ENVELOPE
    silo = make_silo(tmp_path / "silo", extra=f"outbox_quota = {quota}")
    for number in range(200):
        request = make_request(str(number), epsilon=0.01, settings={"features": 500})
        _, plan = silo.plan(request)
        answer = silo.answer(request.encode())
        if isinstance(answer, Refusal):
            break
        assert len(answer.data) <= plan.bytes + ENVELOPE
    assert number > 2 and silo.outbox.size() <= quota
    refused_unpaid(silo, request, "does not fit into what the policy leaves for the outbox")


def test_a_release_that_is_too_large_is_refused_unpaid(tmp_path: Path) -> None:
    silo = make_silo(tmp_path / "silo", extra="most_bytes = 10_000")
    refused_unpaid(silo, make_request(settings={"features": 2000}), "the policy allows 10000 a release")
    assert isinstance(silo.answer(make_request().encode()), SignedReleaseBytes)


def test_an_answer_that_may_take_too_much_of_the_machine_is_refused_unpaid(tmp_path: Path) -> None:
    """By a bound that follows from the request: the same for a silo of any size."""
    bombs = {"features": 100_000}
    for records in (3, 300):
        silo = make_silo(tmp_path / str(records), records=records, extra=f"most_memory = {1 << 29}")
        refused_unpaid(silo, make_request(settings=bombs), f"the policy allows {1 << 29}")
        assert isinstance(silo.answer(make_request().encode()), SignedReleaseBytes)
    messages = {Silo(tmp_path / each).answer(make_request(settings=bombs).encode()).message for each in ("3", "300")}  # type: ignore[union-attr]
    assert len(messages) == 1
    silo = make_silo(tmp_path / "disk", extra=f"most_disk = {ENVELOPE + 100}")
    refused_unpaid(silo, make_request(), "bytes of disk, the policy allows")


def test_ceilings_that_allow_nothing_are_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing could be asked"):
        make_silo(tmp_path / "silo", extra="least_epsilon_per_request = 3.0")
