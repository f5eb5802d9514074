"""Which node of a Flower grid is which silo, and which request goes there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dpdd.common import flower as _flower  # noqa: F401  (first: it turns Flower's telemetry off)

# isort: split
from flwr.serverapp import Grid

from dpdd.common.errors import ConfigError
from dpdd.server.run.requests import RequestGroup


def silos_of(grid: Grid, nodes: Sequence[int]) -> dict[int, str]:
    """Which silo each node is, where the grid knows (it has a method `silo_of(node)`); Flower's own grids do not."""
    silo_of = getattr(grid, "silo_of", None)
    return {} if silo_of is None else {node: silo_of(node) for node in nodes}


def group_for(node: int, names: Mapping[int, str], asked: Sequence[RequestGroup]) -> RequestGroup | None:
    """What this node is asked; None where its silo is asked nothing."""
    if node in names:
        return next((group for group in asked if names[node] in group.silos), None)
    if len(asked) > 1:
        raise ConfigError("silos are asked for different ε, and this engine does not say which node is which silo")
    return asked[0]
