"""What a coordinator learns from a silo that fails: that it failed, and nothing of why."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpdd.common import flower  # first: it turns Flower's telemetry off

# isort: split
from flwr.app import Context, Message, Metadata, RecordDict

from dpdd.client.app import SILO_FAILED, make_app
from dpdd.client.silo import Silo
from dpdd.client.transport.node_log import keep_log
from tests.client.silos import make_request, make_silo

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
