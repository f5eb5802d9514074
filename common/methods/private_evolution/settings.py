"""The settings of Private Evolution: what records vote on, how the population evolves, and what is kept of it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from dpdd.common.config import Settings
from dpdd.common.models.choice import AUTO

VOTES, COUNT = "votes", "count"
"""The released sums."""
POPULATION = "population"
"""What later rounds are asked with."""


class EvolutionSettings(Settings):
    """How silos vote, and what becomes of their votes; all of it decides what a round is asked with.

    In each of `rounds` rounds every record votes for the nearest of the `population` members of its own class; all
    rounds are reserved together. Images are compared by so many whitened `features` of a public `backbone` (left out:
    the one for images of the run's shape; with 0 there is none) and by a small picture of `picture` x `picture` pixels;
    rows of a table by their cells.

    The `generator` makes new members: `shapes` (leaves, strokes and blobs, of no data at all), `pool` (images of the
    public dataset `pool`, at most `pool_images` of them), `rows` (cells of a table) or `diffusion` (the `model` in a
    folder of that name). Left out, it is `shapes` for images and `rows` for tables. Members with fewer votes than
    `threshold` standard deviations of the noise lose them. The `elite`, a share of the population, stays as it is; the
    rest are variations of members drawn in proportion to their votes, of a strength that falls from `strength` to
    `last_strength`.
    """

    rounds: Annotated[int, Field(ge=1, le=100)] = 6
    population: Annotated[int, Field(ge=2, le=10_000)] = 100
    backbone: str = AUTO
    features: Annotated[int, Field(ge=0, le=4096)] = 128
    picture: Annotated[int, Field(ge=0, le=64)] = 4
    count_weight: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    generator: Literal["auto", "shapes", "pool", "rows", "diffusion"] = "auto"
    pool: str = ""
    pool_images: Annotated[int, Field(ge=1, le=1_000_000)] = 20_000
    model: Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9_-]{0,63})?$")] = ""
    threshold: Annotated[float, Field(ge=0.0, le=10.0)] = 1.0
    elite: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.3
    strength: Annotated[float, Field(gt=0.0, le=1.0)] = 0.8
    last_strength: Annotated[float, Field(gt=0.0, le=1.0)] = 0.2

    @model_validator(mode="after")
    def _complete(self) -> EvolutionSettings:
        if (self.generator == "pool") != bool(self.pool):
            raise ValueError('generator = "pool" and the name of a public dataset, pool, go together')
        if (self.generator == "diffusion") != bool(self.model):
            raise ValueError('generator = "diffusion" and the name of a model go together')
        if self.last_strength > self.strength:
            raise ValueError("variations get weaker from round to round: last_strength is at most strength")
        return self

    @property
    def vote(self) -> float:
        """What a record adds to the member that it votes for: vote and count have norm 1 together."""
        return float((1.0 - self.count_weight**2) ** 0.5)

    def strength_after(self, number: int) -> float:
        """Of the variations after round `number`, counted from 0.

        >>> settings = EvolutionSettings(rounds=4, strength=0.8, last_strength=0.2)
        >>> [round(settings.strength_after(number), 3) for number in range(4)]
        [0.8, 0.4, 0.2, 0.2]
        """
        share = min(number / max(self.rounds - 2, 1), 1.0)
        return float(self.strength * (self.last_strength / self.strength) ** share)


class SelectionSettings(Settings):
    """Which members of the last population are kept; may change without asking the silos again.

    `selection`: the members with the most `votes`, or a `draw` in proportion to votes, each member once. Where more
    records are asked for than members have votes, the rest are variations of these.
    """

    selection: Literal["votes", "draw"] = "votes"
