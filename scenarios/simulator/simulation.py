"""What every engine is told: a scenario, the folder of its run, and where noise and images come from."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from dpdd.client.silo import Silo
from dpdd.common.files.atomic import write_atomically
from dpdd.common.progress import Console
from dpdd.common.synthesis.runner import SynthesisRunner
from dpdd.scenarios.simulator import silos
from dpdd.server.run.origin import keep_origin
from dpdd.server.run.scenario import Scenario, shipped


@dataclass(frozen=True, eq=False)
class Simulation:
    """A scenario and the name or file that it was loaded from; `noise_seed` makes noise repeatable.

    The `runner` makes the coordinator's images; silos have their own. `dataset` is one that was named on the command
    line, in place of the file's `data.source`. With `rehearsal` a dry round comes first.
    """

    source: str
    scenario: Scenario
    folder: Path
    console: Console
    noise_seed: int | None = None
    runner: SynthesisRunner = field(default_factory=SynthesisRunner)
    dataset: Path | None = None
    rehearsal: bool = True

    @property
    def scenario_file(self) -> str:
        """What the coordinator loads: the name or file; or the copy that remembers what the command line named."""
        return self.source if self.dataset is None else str(self.folder / "scenario.toml")

    def set_up(self) -> list[Silo]:
        """The silos, made if they are not there yet; their roster is then in `silos.json`."""
        simulated = silos.set_up(self.scenario, self.folder, self.console, self.noise_seed)
        silos.roster_of(simulated).save(self.folder / "silos.json")
        if self.dataset is not None:
            original, copy = shipped().get(self.source, Path(self.source)), Path(self.scenario_file)
            keep_origin(original, copy, needed=True, source=self.dataset)
            write_atomically(copy, original.read_bytes())
        return simulated
