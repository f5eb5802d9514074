"""What every Flower `Grid` of ours has in common: named silos for nodes, and messages that need no global identity."""

from __future__ import annotations

import time
import uuid
from abc import ABC
from collections.abc import Iterable, Mapping

from dpdd.common import flower as _flower  # noqa: F401  (first: it turns Flower's telemetry off)

# isort: split
from flwr.app import DEFAULT_TTL, Message, Metadata, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run

COORDINATOR = 1
"""Its node; silos are the nodes from 2 on."""


class SiloGrid(Grid, ABC):
    """A grid whose nodes are silos with these names."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = dict(names)
        self._run = Run.create_empty(1)

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
            src_node_id=COORDINATOR,
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
        return list(self._names)

    def silo_of(self, node: int) -> str:
        """The name of the silo behind a node."""
        return self._names[node]


class NobodyGrid(SiloGrid):
    """A grid without a silo: a run on it makes what it can of the releases that it has."""

    def __init__(self) -> None:
        super().__init__({})

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """There is nobody to send to."""
        return []

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Nobody answers."""
        return []

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Nobody answers."""
        return []
