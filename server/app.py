"""The coordinator as a Flower `ServerApp`.

Its run config names the `scenario`, the `folder` of the run, and the `roster` of silos (default: `silos.json` there);
and the `device` (default: auto) and number of `workers` (default: 1; 0: one per processor or GPU) that make images.
`rehearsal` (default: true) holds a dry round before silos are asked to spend; `deadline_minutes` (default: the
scenario's) bounds it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dpdd.common import flower as _flower  # noqa: F401  (first: it turns Flower's telemetry off)

# isort: split
from flwr.app import Context, RecordDict
from flwr.serverapp import Grid, ServerApp

from dpdd.common.errors import ConfigError
from dpdd.common.progress import Console
from dpdd.common.synthesis.runner import SynthesisRunner
from dpdd.server.evaluation import continual
from dpdd.server.report.run_page import write_report
from dpdd.server.run.describing import run_class
from dpdd.server.run.dry_round import RehearsalDeadline
from dpdd.server.run.folder import again
from dpdd.server.run.roster import Roster
from dpdd.server.run.scenario import load_scenario


def make_app(console: Console | None = None) -> ServerApp:
    """A ServerApp that reports to `console`."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        for key in ("scenario", "folder"):
            if key not in config:
                raise ConfigError(f"the run config has no {key!r}")
        folder = Path(str(config["folder"]))
        roster = Roster.load(Path(str(config.get("roster", folder / "silos.json"))))
        runner = SynthesisRunner(
            device=str(config.get("device", "auto")), workers=int(config.get("workers", 1)) or None
        )
        scenario = load_scenario(str(config["scenario"]))
        minutes = float(config.get("deadline_minutes", scenario.exchange.deadline_minutes))
        rehearsal = RehearsalDeadline.of(scenario.exchange, minutes) if config.get("rehearsal", True) else None
        run = run_class(scenario)(scenario, folder, roster, console or Console(), runner, rehearsal)
        if run.scenario.continual:
            continual.learn(run, grid)
        else:
            run.execute(grid)
        write_report(folder, again(folder))

    return app


def run_config(
    scenario: str,
    folder: Path,
    runner: SynthesisRunner,
    *,
    rehearsal: bool = True,
    deadline_minutes: float | None = None,
) -> dict[str, Any]:
    """The run config that says this."""
    config: dict[str, Any] = {"scenario": scenario, "folder": str(folder), "rehearsal": rehearsal}
    config |= {"device": runner.device, "workers": runner.workers or 0}
    return config if deadline_minutes is None else {**config, "deadline_minutes": deadline_minutes}


def run_on(
    grid: Grid,
    scenario: str,
    folder: Path,
    runner: SynthesisRunner,
    console: Console,
    *,
    rehearsal: bool = True,
    deadline_minutes: float | None = None,
) -> dict[str, Any]:
    """Run the ServerApp on a grid, in this process; what `metrics.json` holds."""
    config = run_config(scenario, folder, runner, rehearsal=rehearsal, deadline_minutes=deadline_minutes)
    make_app(console)(grid, Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config))
    metrics: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
    return metrics


app = make_app()
