"""The settings of SPS: what is released, and how images are made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from dpdd.common.config import Settings
from dpdd.common.models.choice import AUTO


class MethodSettings(Settings):
    """What is released; part of the request.

    `backbone` left out is the one for images of the run's shape (`dpdd.common.models.choice`), and `features` left out
    are as many as suit the backbone: 512 of a scattering transform in a file, 256 of one that is built in code, all of
    a network that has fewer. The coordinator fills both in.
    `features` and `picture` make the embedding (0 and 0: none). `global_dimensions`, `class_layers` and `thumbnail`
    make feature statistics, as in the paper; `row_share` is their part of a record's squared norm beside the embedding.
    `stages` are reserved together; the first has `first_share` of the budget (in 1/σ²), the others share the rest.
    With `more_backbones` the stages take turns: statistics of the second stage look at the first of these, and so
    on, and images are made to match all; the embedding stays with `backbone`. Hashes are filled in by the coordinator.
    """

    backbone: str = AUTO
    features: Annotated[int, Field(ge=0, le=2048)] = 512
    picture: Annotated[int, Field(ge=0, le=16)] = 7
    global_dimensions: Annotated[int, Field(ge=0, le=1024)] = 0
    class_dimensions: Annotated[int, Field(ge=1, le=1024)] = 48
    class_layers: Annotated[int, Field(ge=0)] = 0
    thumbnail: Annotated[int, Field(ge=0, le=16)] = 0
    row_share: Annotated[float, Field(gt=0.0, lt=0.9)] = 0.4
    clip: Annotated[float, Field(gt=0.0, le=1.0)] = 0.2
    count_weight: Annotated[float, Field(gt=0.0, le=0.3)] = 0.1
    groups: Annotated[int, Field(ge=0, le=10_000)] = 0
    classes_per_group: Annotated[int, Field(ge=0)] = 0
    group_seed: Annotated[int, Field(ge=0)] = 0
    stages: Annotated[int, Field(ge=1, le=50)] = 1
    first_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.3
    more_backbones: tuple[str, ...] = ()
    more_sha256: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _both(self) -> MethodSettings:
        if bool(self.groups) != bool(self.classes_per_group):
            raise ValueError("groups and classes_per_group belong together: give both, or neither")
        if not (self.features or self.picture or self.global_dimensions or self.class_layers or self.thumbnail):
            raise ValueError("nothing is released: ask for features, a picture, a thumbnail, or some layers")
        if self.more_backbones and not (self.global_dimensions or self.class_layers):
            raise ValueError("more_backbones are for statistics of layers: ask for global_dimensions or class_layers")
        if len(self.more_backbones) >= self.stages:
            raise ValueError(f"{1 + len(self.more_backbones)} backbones need as many stages, not {self.stages}")
        if self.more_sha256 and len(self.more_sha256) != len(self.more_backbones):
            raise ValueError("more_sha256 is filled in by the coordinator: leave it out")
        return self

    @property
    def backbones(self) -> tuple[tuple[str, str], ...]:
        """All of them by name, the stages' in turn, with the hash that each must have (empty: any)."""
        hashes = self.more_sha256 or ("",) * len(self.more_backbones)
        return (self.backbone, ""), *zip(self.more_backbones, hashes, strict=True)


class SynthesisSettings(Settings):
    """How images are made; may change without asking the silos again.

    With `ema` the feature statistics of a batch are averaged over steps, for small batches. `redraws` are extra
    batches, to replace images that the teacher takes for another class. `average_last_stages` is how many of the last
    Newton steps the teacher averages: 1 where classes are easy to tell apart, more where they are hard.
    """

    renamed: ClassVar[Mapping[str, str]] = {
        "portrait_weight": "embedding_weight",
        "jostling": "augmentation_strength",
        "settle": "average_last_stages",
    }

    steps: Annotated[int, Field(ge=1, le=100_000)] = 120
    batch_per_class: Annotated[int, Field(ge=2, le=10_000)] = 20
    learning_rate: Annotated[float, Field(gt=0.0)] = 0.02
    class_weight: Annotated[float, Field(ge=0.0)] = 10.0
    embedding_weight: Annotated[float, Field(ge=0.0)] = 1.0
    picture_weight: Annotated[float, Field(ge=0.0)] = 5.0
    teacher_weight: Annotated[float, Field(ge=0.0)] = 0.05
    smoothness: Annotated[float, Field(ge=0.0)] = 0.02
    range_weight: Annotated[float, Field(ge=0.0)] = 10.0
    eigenvalue_jitter: Annotated[float, Field(ge=0.0)] = 2.0
    augmentation_strength: Annotated[float, Field(ge=0.0, le=0.5)] = 0.05
    flips: bool = False
    ema: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    redraws: Annotated[int, Field(ge=0, le=100)] = 1
    soft_labels: bool = True
    average_last_stages: Annotated[int, Field(ge=1, le=50)] = 1
