"""The settings of the matching family: what is released, and how images are made of it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from dpdd.common.config import Settings

SIGNAL, COUNT = "signal", "count"
"""The released sums."""


class MethodSettings(Settings):
    """What is released; part of the request.

    `networks` of 0 means a new one for every draw. `dimensions` of 0 means no subspace; "auto" lets the coordinator
    pick by `subspace.best` before it asks, from `records_per_class`, a public guess of how many there are in all silos.
    `moments` of 2 adds the squares of coordinates in the subspace: how images of a class differ, not only their mean;
    `whitening` above 0 gives more weight to directions in which images differ less.
    `auxiliary` "generated" has the releases of a `generator` first, with `generator_settings` and `generator_synthesis`
    of its own, and `auxiliary_share` of the budget: of the sum of μ², about, which is what adds up.
    `subspace_arithmetic` is how features of auxiliary images are computed: "integer", which a coordinator fills in, has
    the same bits on every machine; "float64" is what requests mean that do not say, and how their releases are read.
    `encoding` "short" sends 16 bits per number.
    """

    signal: Literal["features", "gradients"] = "features"
    schedule: Literal["decoupled", "coupled"] = "decoupled"
    draws: Annotated[int, Field(ge=1, le=20_000)] = 200
    networks: Annotated[int, Field(ge=0, le=20_000)] = 50
    rate: Annotated[float, Field(gt=0.0, le=1.0)] = 0.05
    width: Annotated[int, Field(ge=4, le=512)] = 64
    depth: Annotated[int, Field(ge=1, le=4)] = 3
    dimensions: Annotated[int, Field(ge=0, le=2048)] | Literal["auto"] = "auto"
    moments: Literal[1, 2] = 1
    whitening: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    records_per_class: Annotated[int, Field(ge=1)] = 5000
    auxiliary: Literal["leaves", "generated"] = "leaves"
    auxiliary_images: Annotated[int, Field(ge=10, le=5000)] = 400
    auxiliary_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    generator: Literal["dp-merf", "private-evolution", "sps"] = "dp-merf"
    generator_settings: dict[str, Any] = Field(default_factory=dict)
    generator_synthesis: dict[str, Any] = Field(default_factory=dict)
    subspace_arithmetic: Literal["integer", "float64"] | None = None
    augment: bool = True
    flips: bool = False
    count_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    encoding: Literal["short", "exact"] = "short"

    @model_validator(mode="after")
    def _fitting(self) -> MethodSettings:
        if self.signal == "gradients" and self.dimensions not in (0, "auto"):
            raise ValueError("a subspace is for features; gradients have dimensions = 0")
        if self.moments == 2 and (self.signal == "gradients" or self.dimensions == 0):
            raise ValueError("moments = 2 is for features in a subspace")
        if self.whitening and (self.signal == "gradients" or self.dimensions == 0):
            raise ValueError("whitening is for features in a subspace")
        if isinstance(self.dimensions, int) and self.dimensions >= self.auxiliary_images:
            raise ValueError(f"{self.auxiliary_images} auxiliary images have fewer than {self.dimensions} dimensions")
        if self.auxiliary == "leaves" and (self.generator_settings or self.generator_synthesis):
            raise ValueError('settings of a generator are for auxiliary = "generated"')
        return self

    def on_wire(self) -> dict[str, Any]:
        """Without what is as older requests mean it that do not name it: those keep their bytes, and their id."""
        wire = super().on_wire()
        if self.subspace_arithmetic != "integer":
            del wire["subspace_arithmetic"]
        for name in ("generator", "generator_settings", "generator_synthesis"):
            if wire[name] in ("dp-merf", {}):
                del wire[name]
        return wire


class SynthesisSettings(Settings):
    """How images are made; may change without asking the silos again.

    `steps` is for decoupled schedules: a coupled one has a step per draw. `parts` cuts each image into parts × parts
    pieces that are each enlarged to a full image (partition and expand): the set has parts² times as many images.
    `start` is where the images begin: noise, or the auxiliary images if they were generated. `classes_per_batch` are
    optimised together; 0: as many as fit into the processor's cache.
    """

    steps: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    draws_per_step: Annotated[int, Field(ge=1, le=1000)] = 1
    learning_rate: Annotated[float, Field(gt=0.0)] = 0.1
    smoothness: Annotated[float, Field(ge=0.0)] = 0.0
    range_weight: Annotated[float, Field(ge=0.0)] = 10.0
    parts: Annotated[int, Field(ge=1, le=4)] = 1
    start: Literal["noise", "auxiliary"] = "noise"
    classes_per_batch: Annotated[int, Field(ge=0)] = 0
