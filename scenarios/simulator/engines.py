"""The engines by name: what carries messages between the coordinator and simulated silos.

An engine runs a `Simulation`, and gives what `metrics.json` holds. Its module is imported only when it is chosen: Ray,
gRPC and Flower take seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpdd.scenarios.simulator.simulation import Simulation

IN_PROCESS = "in-process"


def _in_process(simulation: Simulation) -> dict[str, Any]:
    from dpdd.scenarios.simulator import inprocess

    return inprocess.run(simulation)


def _exchange(simulation: Simulation) -> dict[str, Any]:
    from dpdd.scenarios.simulator import loopback

    return loopback.run(simulation)


def _ray(simulation: Simulation) -> dict[str, Any]:
    from dpdd.scenarios.simulator import flower_simulation

    return flower_simulation.run(simulation)


ENGINES: Mapping[str, Callable[[Simulation], dict[str, Any]]] = {
    IN_PROCESS: _in_process,
    "exchange": _exchange,
    "ray": _ray,
}
