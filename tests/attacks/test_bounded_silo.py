"""What a coordinator learns from a silo that works or fails: that it does, and nothing of the records."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from dpdd.common import flower  # first: it turns Flower's telemetry off

# isort: split
from flwr.app import Context, Message, Metadata, RecordDict

from dpdd.client.app import SILO_FAILED, make_app
from dpdd.client.silo import Silo
from dpdd.client.transport.node import Doing, Node
from dpdd.client.transport.node_log import keep_log
from dpdd.v1 import exchange_pb2
from tests.client.silos import make_request, make_silo
from tests.server.transport.worlds import running, until, world

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
