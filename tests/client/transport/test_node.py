"""The sealed node's own bookkeeping: nothing that came is forgotten, and trying again goes on as long as it helps."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import grpc
import pytest

from dpdd.client.transport.installed_app import ATTEMPTS
from dpdd.client.transport.node import Node, _Heard
from dpdd.client.transport.retries import LONGEST_WAIT
from dpdd.common.progress import Console
from dpdd.common.wire.answer import Reason, Refusal
from dpdd.common.wire.exchange import sign_request
from dpdd.server.transport import streams
from dpdd.v1.exchange_pb2 import RequestEnvelope
from tests.client.silos import make_request
from tests.server.transport.worlds import entries, running, until, world


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with world(tmp_path) as here:
        yield Node(here.silo("north").folder, Console(quiet=True))


class Stream(list[bytes]):
    """A coordinator's stream of requests, already over."""

    def initial_metadata(self) -> None: ...

    def is_active(self) -> bool:
        return True


class Eager(queue.Queue[_Heard]):
    """An inbox whose worker has taken a request out before `put` returns."""

    def __init__(self, node: Node) -> None:
        super().__init__()
        self._node, self.taken = node, 0

    def put(self, item: _Heard, block: bool = True, timeout: float | None = None) -> None:
        self._node._queued.discard(item.digest)
        self.taken += 1


def test_a_request_that_was_answered_at_once_is_heard_again_after_a_reconnect(node: Node) -> None:
    inbox = Eager(node)
    node._inbox = inbox

    class Channel:
        def unary_stream(self, _method: str) -> Any:
            return lambda *_, **__: Stream([RequestEnvelope(request=b"the same").SerializeToString()])

        def unary_unary(self, method: str) -> Any:
            assert method.endswith(("/RequestKeys", "/Position"))
            return lambda *_, **__: b""

    for connection in (1, 2, 3):
        node._listen(Channel())  # type: ignore[arg-type]
        assert inbox.taken == connection


class Failure(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._code.name


def test_refusals_count_only_in_a_row(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node._stop, "wait", lambda _seconds: False)
    node._channel = object()  # type: ignore[assignment]
    damaged, cut = Failure(grpc.StatusCode.DATA_LOSS), Failure(grpc.StatusCode.UNAVAILABLE)

    def sending(*outcomes: Failure | None) -> bool:
        left = iter(outcomes)

        def send(_channel: grpc.Channel) -> None:
            if (error := next(left)) is not None:
                raise error

        return node._send_with_retries(send)

    assert sending(*[damaged, cut] * 5, None)
    assert not sending(*[damaged] * ATTEMPTS, None)
    assert not sending(Failure(grpc.StatusCode.PERMISSION_DENIED), None)


class Lines(Console):
    """A console that keeps what it was told."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


def test_every_wait_is_announced_and_the_longest_ones_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    console, waits = Lines(), list[float]()
    monkeypatch.setattr(node, "_console", console)
    monkeypatch.setattr(node._stop, "wait", waits.append)
    node._channel = object()  # type: ignore[assignment]
    failures = iter([Failure(grpc.StatusCode.UNAVAILABLE)] * 40)

    def send(_channel: grpc.Channel) -> None:
        if (error := next(failures, None)) is not None:
            raise error

    assert node._send_with_retries(send)
    told = [line.partition("; trying again ")[2] for line in console.lines]
    right = [f"in {w:.{int(w < 1)}f} s" if w < LONGEST_WAIT / 2 else "every minute or so" for w in waits]
    assert told == [words for words, _ in groupby(right)]  # the same words are not said twice in a row
    assert 6 <= len(told) < 20 and told[-1] == "every minute or so"


def test_a_failure_nobody_foresaw_is_trouble_and_the_next_request_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world(tmp_path) as here:
        silo = here.silo("north")
        first, second = make_request(run="first"), make_request(run="second")
        with running(silo) as node:
            send = node._send_release

            def broken(request_id: str, request: bytes) -> None:
                if request_id == first.id:
                    raise RuntimeError("the outbox is on fire")
                send(request_id, request)

            monkeypatch.setattr(node, "_send_release", broken)
            here.ask(silo, request=first)
            until(lambda: (row := here.queue.row(first.id, "north")) and row.state == "in trouble")
            here.ask(silo, request=second)
            until(lambda: (row := here.queue.row(second.id, "north")) and row.state != "asked")
        assert entries(silo)[:3] == ["open", "reserve", "commit"]


def test_what_the_coordinator_did_not_sign_is_neither_answered_nor_paid(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Refusal] = []
    monkeypatch.setattr(node, "_send_refusal", said.append)
    monkeypatch.setattr(node, "_send_release", lambda *_: pytest.fail("a release leaves"))
    monkeypatch.setattr(node, "_report_failure", lambda *_: pytest.fail("the request was tried"))
    request = make_request()
    before = entries(node._silo)
    node._handle(request.id, request.encode(), signed=False)
    assert [(refusal.request_id, refusal.reason) for refusal in said] == [(request.id, Reason.WRONG_COORDINATOR)]
    assert entries(node._silo) == before and node._silo.outbox.ids() == []


def test_something_that_is_not_a_request_does_not_stop_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world(tmp_path) as here:
        silo = here.silo("north")
        key, letters = here.coordinator.request_key, [b"\xff noise"]
        letters.append(sign_request(b"", key))  # signed, and still no request
        monkeypatch.setattr(streams, "sign_request", lambda *what: letters.pop(0) if letters else sign_request(*what))
        with running(silo):
            for run in ("noise", "nothing"):
                asked = here.ask(silo, request=make_request(run=run))
                until(lambda: (row := here.queue.row(asked.id, "north")) and row.state == "delivered")  # noqa: B023
            request = here.ask(silo)
            until(lambda: here.queue.digest(request.id, "north"))
