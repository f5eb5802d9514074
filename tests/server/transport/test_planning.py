"""What answers have to be is planned once, by one thread: planning samples can take minutes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dpdd.common.methods.verification import Expected, expected_of
from dpdd.common.wire.request import ReleaseRequest
from dpdd.server.transport import request_queue
from dpdd.server.transport.request_queue import NotPlanned, RequestQueue
from tests.client.silos import make_request


def test_others_are_sent_away_or_wait_while_one_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go, planned = threading.Event(), threading.Event(), list[str]()

    def slowly(request: ReleaseRequest) -> Expected:
        planned.append(request.id)
        begun.set()
        assert go.wait(60.0)
        return expected_of(request)

    monkeypatch.setattr(request_queue, "expected_of", slowly)
    queue, request, found = RequestQueue(tmp_path / "store"), make_request(), list[Expected]()
    queue.ask(request.id, request.encode(), ["north"])
    callers = [threading.Thread(target=lambda: found.append(queue.expected(request.id, wait=True))) for _ in range(3)]
    for caller in callers:
        caller.start()
    assert begun.wait(60.0)
    with pytest.raises(NotPlanned, match="send it again"):
        queue.expected(request.id)
    go.set()
    for caller in callers:
        caller.join(60.0)
    assert planned == [request.id] and queue.expected(request.id) is found[0] is found[2]
    queue.close()
