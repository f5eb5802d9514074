"""What a coordinator learns from a silo that fails: that it failed, and nothing of why."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpdd.common import flower  # first: it turns Flower's telemetry off

# isort: split
from flwr.app import Context, Message, Metadata, RecordDict

from dpdd.client.app import SILO_FAILED, make_app
from dpdd.client.silo import Silo
from tests.client.silos import make_request, make_silo

RECORD = "patient 4711, positive"


@pytest.mark.parametrize("error", [RuntimeError, ValueError, MemoryError, AssertionError])
def test_no_exception_carries_its_text_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    make_silo(tmp_path / "silo")

    def fail(*_: object, **__: object) -> None:
        raise error(RECORD)

    monkeypatch.setattr(Silo, "answer", fail)
    metadata = Metadata(1, "request", 1, 2, "", "", 0.0, 3600.0, flower.ACTION)
    content = flower.pack(make_request().encode(), "dpdd.v1.ReleaseRequest")
    message = Message(content=content, metadata=metadata)  # type: ignore[call-overload]
    context = Context(1, 2, {"silo": str(tmp_path / "silo")}, RecordDict(), {})
    reply = make_app()(message, context)
    assert reply.has_error() and reply.error.code == SILO_FAILED
    assert reply.error.reason == "the silo could not answer; its own log says why"
