"""Grids whose cells have run already: finished runs in their folders, as `dpdd-sim run` would leave them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpdd.common.synthesis.product import Product
from dpdd.scenarios.compare.cells import Cells, Ended
from dpdd.scenarios.compare.grid import grid_of
from tests.server.finished_runs import images
from tests.server.report.reported_runs import reported_run


def scores(mean: float) -> dict[str, Any]:
    hard = {"mean": mean, "std": 0.0, "runs": [mean], "labels": "hard"}
    teacher = {"mean": mean + 0.1, "std": 0.0, "runs": [mean + 0.1], "labels": "teacher"}
    return {"accuracy": {"convnet": teacher, "convnet-dd": hard}, "metrics": {}}


def finished(folder: Path, product: Product | None = None, **values: Any) -> Cells:
    """A grid on `quickstart`; the accuracy of a cell is 0.5, and 0.01 more for every one before it."""
    cells = Cells(folder, grid_of({"scenarios": ["quickstart"], **values}, "the grid").cells())
    cells.prepare()
    for number, cell in enumerate(cells.cells):
        cells.home(cell).mkdir()
        reported_run(cells.home(cell), product or images(), scores=scores(0.5 + 0.01 * number))
        cells.ended[cell.key] = Ended(seconds=20.0, cpu_seconds=10.0 + number)
    return cells
