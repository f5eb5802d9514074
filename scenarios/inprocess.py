"""A Flower `Grid` in one process: every message goes straight to the real `ClientApp`, a few silos at a time."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dpdd.common import flower as _flower  # noqa: F401  (first: it turns Flower's telemetry off)

# isort: split
from flwr.app import DEFAULT_TTL, Context, Message, Metadata, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run

_COORDINATOR = 1


class InProcessGrid(Grid):
    """Node i + 2 is the i-th silo folder; 1 is the coordinator."""

    def __init__(self, app: ClientApp, silos: Mapping[int, Path], workers: int = 1) -> None:
        self._app = app
        self._silos = dict(silos)
        self._workers = workers
        self._run = Run.create_empty(1)
        self._replies: dict[str, Message] = {}

    @classmethod
    def of(cls, app: ClientApp, folders: Iterable[Path], workers: int = 1) -> InProcessGrid:
        """A grid with one node per silo folder."""
        return cls(app, dict(enumerate(folders, start=_COORDINATOR + 1)), workers)

    def set_run(self, run: Run) -> None:
        """Set the Flower run."""
        self._run = run

    @property
    def run(self) -> Run:
        """The Flower run."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """A message to a silo; with explicit metadata, since Flower would otherwise want a process-wide identity."""
        metadata = Metadata(
            run_id=self._run.run_id,
            message_id=uuid.uuid4().hex,
            src_node_id=_COORDINATOR,
            dst_node_id=dst_node_id,
            reply_to_message_id="",
            group_id=group_id,
            created_at=time.time(),
            ttl=DEFAULT_TTL if ttl is None else ttl,
            message_type=message_type,
        )
        return Message(content=content, metadata=metadata)  # type: ignore[call-overload]

    def get_node_ids(self) -> Iterable[int]:
        """All silos."""
        return list(self._silos)

    def silo_of(self, node: int) -> str:
        """The name of the silo behind a node: its folder's."""
        return self._silos[node].name

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Answer the messages now; the replies wait for `pull_messages`."""
        ids = []
        for message in messages:
            self._replies[message.metadata.message_id] = self._deliver(message)
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies to these messages, once each."""
        return [self._replies.pop(identity) for identity in list(message_ids) if identity in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Replies as they come."""
        with ThreadPoolExecutor(self._workers) as pool:
            yield from pool.map(self._deliver, list(messages))

    def _deliver(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        context = Context(
            run_id=self._run.run_id,
            node_id=node,
            node_config={"silo": str(self._silos[node])},
            state=RecordDict(),
            run_config={},
        )
        return self._app(message, context)
