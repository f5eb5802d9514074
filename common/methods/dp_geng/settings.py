"""The settings of DP-GENG: what is released in which part, and how images are made of it."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from dpdd.common.config import Settings

GRADIENT, COUNT = "gradient", "count"
"""The sums that the expert's stage releases; those of the matching stage are the matching family's."""
EXPERT, SIZE = "expert", "size"
"""What the expert's stage is asked with: the weights that silos start from, and how many records a silo has."""

PUBLISHED_SHARES = (0.27, 1.48, 1.30)
"""μ of generator, feature matching and expert in the paper, at ε = 10."""


class MethodSettings(Settings):
    """What is released; part of the request.

    `shares` are the parts' μ (generator, matching, expert) in proportion to each other: their squares share the budget.
    A share of 0 leaves the part out, and the others have its budget. `generator` is a method whose releases give the
    generated images, with `generator_settings` and `generator_synthesis` of its own; the extractors and the expert are
    trained on `generated_per_class` images.

    `draws` to `encoding` are the matching family's (docs/matching.md), but that its networks are `networks` extractors,
    "trained" for `extractor_epochs` on generated images or "random". The expert is fine-tuned in `expert_steps` steps
    of DP-SGD over Poisson samples at `expert_rate`, from weights that were trained for `expert_epochs` on generated
    images; `expert_learning_rate` is that of its first step, in units of the norm `expert_clip`.
    """

    shares: tuple[float, float, float] = PUBLISHED_SHARES
    generator: Literal["dp-merf", "private-evolution", "sps"] = "dp-merf"
    generator_settings: dict[str, Any] = Field(default_factory=dict)
    generator_synthesis: dict[str, Any] = Field(default_factory=dict)
    generated_per_class: Annotated[int, Field(ge=8, le=20_000)] = 400

    schedule: Literal["decoupled", "coupled"] = "decoupled"
    draws: Annotated[int, Field(ge=1, le=20_000)] = 200
    rate: Annotated[float, Field(gt=0.0, le=1.0)] = 0.05
    networks: Annotated[int, Field(ge=1, le=1000)] = 10
    extractors: Literal["trained", "random"] = "trained"
    extractor_epochs: Annotated[int, Field(ge=1, le=1000)] = 5
    width: Annotated[int, Field(ge=4, le=512)] = 32
    depth: Annotated[int, Field(ge=1, le=4)] = 3
    dimensions: Annotated[int, Field(ge=0, le=2048)] = 0
    moments: Literal[1, 2] = 1
    whitening: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    auxiliary_images: Annotated[int, Field(ge=10, le=5000)] = 200
    augment: bool = True
    flips: bool = False
    count_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    encoding: Literal["short", "exact"] = "short"

    expert_width: Annotated[int, Field(ge=4, le=512)] = 32
    expert_depth: Annotated[int, Field(ge=1, le=6)] = 3
    expert_norm: Literal["instance", "group", "batch"] = "instance"
    expert_epochs: Annotated[int, Field(ge=0, le=1000)] = 10
    expert_steps: Annotated[int, Field(ge=1, le=100_000)] = 100
    expert_rate: Annotated[float, Field(gt=0.0, le=1.0)] = 0.05
    expert_clip: Annotated[float, Field(gt=0.0, le=1e6)] = 1.0
    expert_learning_rate: Annotated[float, Field(gt=0.0, le=1e6)] = 0.5

    @model_validator(mode="after")
    def _fitting(self) -> MethodSettings:
        if not all(math.isfinite(share) and share >= 0.0 for share in self.shares):
            raise ValueError(f"shares are three numbers of 0 or more, not {list(self.shares)}")
        if self.shares[0] == 0.0:
            raise ValueError("the generator's share is above 0: all other parts begin with generated images")
        if min(share for share in self.shares if share) < 1e-3 * max(self.shares):
            raise ValueError("a share is at least a thousandth of the largest, or 0 for a part that is left out")
        if not self.dimensions and (self.moments == 2 or self.whitening):
            raise ValueError("moments = 2 and whitening are for features in a subspace: choose dimensions above 0")
        return self

    @property
    def matches(self) -> bool:
        """Whether features of records are released."""
        return self.shares[1] > 0.0

    @property
    def fine_tunes(self) -> bool:
        """Whether the expert sees records."""
        return self.shares[2] > 0.0


class SynthesisSettings(Settings):
    """How images are made; may change without asking the silos again.

    Each image of the set is `parts` × `parts` small ones, which are each enlarged to a full one, so that there are
    parts² times as many. `start` "clusters" begins with the generated images next to the centres of k-means clusters,
    "random" with random ones, "noise" with noise. `match` says whose mean features are matched: those released of
    "private" records, those of the "generated" images (free, for comparison), or "nothing". `expert_weight` is that of
    both terms of eq. 4 together; `references` are averaged for its soft labels. With weight 0, or without matching,
    a part of the loss is left out, and with neither images stay as they begin.

    `images_per_step` of each class, at most, are looked at in a step; a coupled schedule has a step per draw.
    """

    steps: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    draws_per_step: Annotated[int, Field(ge=1, le=1000)] = 1
    learning_rate: Annotated[float, Field(gt=0.0)] = 0.02
    parts: Annotated[int, Field(ge=1, le=4)] = 2
    start: Literal["clusters", "random", "noise"] = "clusters"
    match: Literal["private", "generated", "nothing"] = "private"
    expert_weight: Annotated[float, Field(ge=0.0)] = 0.1
    references: Annotated[int, Field(ge=1, le=10_000)] = 64
    range_weight: Annotated[float, Field(ge=0.0)] = 10.0
    images_per_step: Annotated[int, Field(ge=1)] = 10
    classes_per_batch: Annotated[int, Field(ge=1)] = 5

    @property
    def changes(self) -> bool:
        """Whether anything is optimised."""
        return self.match != "nothing" or self.expert_weight > 0.0
