"""What every engine is told: a scenario, the folder of its run, and where noise and images come from."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from dpdd.client.silo import Silo
from dpdd.common.progress import Console
from dpdd.common.synthesis.runner import SynthesisRunner
from dpdd.scenarios.simulator import silos
from dpdd.server.run.scenario import Scenario


@dataclass(frozen=True, eq=False)
class Simulation:
    """A scenario and the name or file that it was loaded from; `noise_seed` makes noise repeatable.

    The `runner` makes the coordinator's images; silos have their own. With `rehearsal` a dry round comes first.
    """

    source: str
    scenario: Scenario
    folder: Path
    console: Console
    noise_seed: int | None = None
    runner: SynthesisRunner = field(default_factory=SynthesisRunner)
    rehearsal: bool = True

    def set_up(self) -> list[Silo]:
        """The silos, made if they are not there yet; their roster is then in `silos.json`."""
        simulated = silos.set_up(self.scenario, self.folder, self.console, self.noise_seed)
        silos.roster_of(simulated).save(self.folder / "silos.json")
        return simulated
