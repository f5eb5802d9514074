"""The generators by name. A new one is a class and an entry here.

>>> sorted(GENERATORS)
['diffusion', 'pool', 'rows', 'shapes']
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import DataKind, RunDescription
from dpdd.common.methods.private_evolution.generator import Generator
from dpdd.common.methods.private_evolution.settings import EvolutionSettings


def _shapes(settings: EvolutionSettings, run: RunDescription) -> Generator:
    from dpdd.common.methods.private_evolution.generator_shapes import ShapesGenerator

    return ShapesGenerator(run.image_shape)


def _rows(settings: EvolutionSettings, run: RunDescription) -> Generator:
    from dpdd.common.methods.private_evolution.generator_rows import RowGenerator

    return RowGenerator(run.columns)


def _pool(settings: EvolutionSettings, run: RunDescription) -> Generator:
    from dpdd.common.methods.private_evolution.generator_pool import PoolGenerator

    return PoolGenerator.of(settings, run)


def _diffusion(settings: EvolutionSettings, run: RunDescription) -> Generator:
    from dpdd.common.methods.private_evolution.generator_diffusion import DiffusionGenerator

    return DiffusionGenerator.of(settings, run)


GENERATORS: Mapping[str, Callable[[EvolutionSettings, RunDescription], Generator]] = {
    "shapes": _shapes,
    "rows": _rows,
    "pool": _pool,
    "diffusion": _diffusion,
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
