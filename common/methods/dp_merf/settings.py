"""The settings of DP-MERF: what is released, and how the generator is trained on it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dpdd.common.config import Settings


class MethodSettings(Settings):
    """What is released; part of the request."""

    features: Annotated[int, Field(ge=8, le=100_000)] = 1000
    length_scale: Annotated[float, Field(gt=0.0, le=1e6)] = 10.0
    count_weight: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1


class SynthesisSettings(Settings):
    """How the generator is trained; may change without asking the silos again.

    Training is unstable where noise is strong: at this `learning_rate` it made one grey image of everything on MNIST at
    ε = 0.5 with 500 features, and 0.002 did not. Where the default does train, 0.002 was worse (one run).
    """

    steps: Annotated[int, Field(ge=1, le=100_000)] = 1000
    batch: Annotated[int, Field(ge=2, le=100_000)] = 200
    learning_rate: Annotated[float, Field(gt=0.0)] = 0.01
    latent: Annotated[int, Field(ge=1)] = 5
    hidden: Annotated[int, Field(ge=1)] = 200
