"""Flower's own simulation engine: the silos' ClientApp runs in Ray actors, the ServerApp in this process.

Ray has no authentication and, left to itself, listens on every interface. So it starts only when somebody asked for it,
on 127.0.0.1 and without reporting usage. With `RAY_ADDRESS` set, that cluster is used: its machines must see the run's
folder.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from dpdd.common import flower as _flower  # noqa: F401  (first: it turns Flower's telemetry off)

# isort: split
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from dpdd.common.errors import ConfigError, DpddError
from dpdd.common.progress import Console
from dpdd.scenarios.simulator.simulation import Simulation
from dpdd.server.app import make_app, run_config

STARTING = 120.0


def run(simulation: Simulation) -> dict[str, Any]:
    """Set up the silos (once), and run the apps on Ray; what `metrics.json` holds."""
    if find_spec("ray") is None:
        raise ConfigError("the engine ray needs Ray, which is not installed; `pip install 'dpdd[ray]'` installs it")
    if simulation.scenario.continual or simulation.scenario.privacy.epsilons:
        raise ConfigError(
            "tasks and different ε per silo need an engine that knows which node is which silo; ray does not: "
            "choose in-process or exchange"
        )
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from flwr.simulation import run_simulation

    silos, results = simulation.set_up(), simulation.folder / "metrics.json"
    results.unlink(missing_ok=True)  # of an earlier run: if this one fails, that must be seen
    config = run_config(simulation.scenario_file, simulation.folder, simulation.runner, rehearsal=simulation.rehearsal)
    local: dict[str, Any] = {} if "RAY_ADDRESS" in os.environ else {"_node_ip_address": "127.0.0.1"}
    logging.getLogger("flwr").setLevel(logging.ERROR)
    run_simulation(
        server_app=_server_app(simulation.console, config, len(silos)),
        client_app=_client_app([str(silo.folder.resolve()) for silo in silos]),
        num_supernodes=len(silos),
        backend_config={"init_args": local, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    metrics: dict[str, Any] = json.loads(results.read_text())
    return metrics


def _client_app(folders: Sequence[str]) -> ClientApp:
    """The installed ClientApp; a simulated node is told a number, and this gives it that silo's folder."""
    app = ClientApp()

    @app.query("plan")
    @app.query("release")
    def answer(message: Message, context: Context) -> Message:
        from dpdd.client.app import make_app  # here, because an actor gets this function and nothing around it

        context.node_config["silo"] = folders[int(context.node_config["partition-id"])]
        return make_app()(message, context)

    return app


def _server_app(console: Console, config: dict[str, Any], nodes: int) -> ServerApp:
    """The ServerApp with its run config, started when the simulated nodes are there."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        deadline = time.monotonic() + STARTING
        while len(list(grid.get_node_ids())) < nodes:
            if time.monotonic() > deadline:
                raise DpddError(f"Flower's simulation did not start {nodes} nodes within {STARTING:g} s")
            time.sleep(0.1)
        context.run_config.update(config)
        make_app(console)(grid, context)

    return app
