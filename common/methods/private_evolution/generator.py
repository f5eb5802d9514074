"""Generators: where members of a population come from. All that they know is public, or was paid for before.

A generator draws records at `random`, and makes a `variation` of given ones: as strong as 1 it hardly knows them any
more, near 0 it leaves them as they are. New ones are entered in `GENERATORS`, under the name that settings use.

>>> sorted(GENERATORS)
['diffusion', 'pool', 'rows', 'shapes']
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from numpy.typing import NDArray

from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import DataKind, RunDescription
from dpdd.common.methods.private_evolution.settings import EvolutionSettings

Records = NDArray[Any]
"""Images as bytes (N, C, H, W), or rows of codes (N, D): synthetic ones."""


class Generator(ABC):
    """What makes members of a population."""

    @abstractmethod
    def random(self, count: int, seed: int) -> Records:
        """So many records that nobody chose."""

    @abstractmethod
    def variation(self, records: Records, mates: Records, strength: float, seed: int) -> Records:
        """One new record for each; `mates` are others of the same class that were chosen too, to be mixed with."""


GENERATORS: Mapping[str, Callable[[EvolutionSettings, RunDescription], Generator]] = {
    "shapes": lambda settings, run: _module("shapes").ShapesGenerator(run.image_shape),
    "rows": lambda settings, run: _module("rows").RowGenerator(run.columns),
    "pool": lambda settings, run: _module("pool").PoolGenerator.of(settings, run),
    "diffusion": lambda settings, run: _module("diffusion").DiffusionGenerator.of(settings, run),
}
"""By name; what a generator needs is imported when it is asked for."""


def generator_of(settings: EvolutionSettings, run: RunDescription) -> Generator:
    """The generator of a run; ConfigError where there is none for its records."""
    table = run.kind is DataKind.TABLE
    if settings.generator not in GENERATORS or (settings.generator == "rows") != table:
        raise ConfigError(f'generator = "{settings.generator}" makes no records of shape {run.shape}')
    return GENERATORS[settings.generator](settings, run)


def first_generator(settings: EvolutionSettings, run: RunDescription) -> Generator:
    """Who draws the first population, which silos draw too: of no data, and from the seed alone."""
    return GENERATORS["rows" if run.kind is DataKind.TABLE else "shapes"](settings, run)


def _module(name: str) -> Any:
    return import_module(f"{__package__}.generator_{name}")
