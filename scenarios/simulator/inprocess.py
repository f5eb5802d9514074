"""The engine in one process: a Flower `Grid` that hands every message straight to the real `ClientApp`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dpdd.common import flower as _flower  # noqa: F401  (first: it turns Flower's telemetry off)

# isort: split
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from dpdd.client.app import make_app as client_app
from dpdd.client.silo import Silo
from dpdd.common.progress import Console, Progress
from dpdd.scenarios.simulator.simulation import Simulation
from dpdd.server.app import run_on
from dpdd.server.transport.silo_grid import COORDINATOR, SiloGrid


def run(simulation: Simulation) -> dict[str, Any]:
    """Set up the silos (once), and run both apps in this process; what `metrics.json` holds."""
    grid = grid_of(simulation.set_up(), simulation.console)
    return run_on(
        grid,
        simulation.scenario_file,
        simulation.folder,
        simulation.runner,
        simulation.console,
        rehearsal=simulation.rehearsal,
    )


def grid_of(silos: Iterable[Silo], console: Console) -> InProcessGrid:
    """A grid with these silos; what one of them does is shown with its name."""

    def named(silo: str) -> Progress:
        return lambda what, done, of: console(f"{silo}: {what}", done, of)

    return InProcessGrid.of(client_app(named), [silo.folder for silo in silos])


class InProcessGrid(SiloGrid):
    """Node i + 2 is the i-th silo folder; 1 is the coordinator."""

    def __init__(self, app: ClientApp, silos: Mapping[int, Path], workers: int = 1) -> None:
        super().__init__({node: folder.name for node, folder in silos.items()})
        self._app = app
        self._silos = dict(silos)
        self._workers = workers
        self._replies: dict[str, Message] = {}

    @classmethod
    def of(cls, app: ClientApp, folders: Iterable[Path], workers: int = 1) -> InProcessGrid:
        """A grid with one node per silo folder."""
        return cls(app, dict(enumerate(folders, start=COORDINATOR + 1)), workers)

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
