"""Asking the installed `ClientApp`, and nothing else, as a Flower engine would."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

from dpdd.common import flower  # first: it turns Flower's telemetry off

# isort: split
from flwr.app import Context, Message, Metadata, RecordDict
from flwr.clientapp import ClientApp

ATTEMPTS = 3
_COORDINATOR_ID, _NODE_ID = 1, 2


@dataclass(frozen=True)
class InstalledApp:
    """The app of the silo in `folder`, for as long as nobody says `stop`."""

    app: ClientApp
    folder: Path
    stop: threading.Event

    def __call__(self, request: bytes, action: str) -> Message | None:
        """What it answers; None after it failed a few times (it says why itself)."""
        for attempt in range(ATTEMPTS):
            metadata = Metadata(
                run_id=1,
                message_id="request",
                src_node_id=_COORDINATOR_ID,
                dst_node_id=_NODE_ID,
                reply_to_message_id="",
                group_id="",
                created_at=time.time(),
                ttl=3600.0,
                message_type=action,
            )
            message = Message(  # type: ignore[call-overload]
                content=flower.pack(request, "dpdd.v1.ReleaseRequest"), metadata=metadata
            )
            context = Context(
                run_id=1,
                node_id=_NODE_ID,
                node_config={"silo": str(self.folder)},
                state=RecordDict(),
                run_config={},
            )
            reply = self.app(message, context)
            if not reply.has_error():
                return reply
            if attempt + 1 < ATTEMPTS:
                self.stop.wait(1.0 + attempt)
        return None
