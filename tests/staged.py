"""A small method with stages, both halves, for tests of everything around methods: block means, re-centred.

`register` makes it known in this process; tests use the fixture `staged_method`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import Field

from dpdd.client.mechanisms.base import Contribution, Mechanism, privatised_sum
from dpdd.client.records.records import Records
from dpdd.common.config import Settings
from dpdd.common.methods.base import Method, RunDescription
from dpdd.common.methods.plan import Plan, gaussian_plan
from dpdd.common.methods.registry import METHODS
from dpdd.common.privacy.clipping import Layout, class_segment
from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.privatise import Privatised
from dpdd.common.progress import Progress
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.statistics import Statistics
from dpdd.common.wire.request import ReleaseRequest

NAME = "staged"
PRIVATE_HALF = f"dpdd.client.mechanisms.{NAME}"
BLOCKS = 4
WIDTH = BLOCKS * BLOCKS


class MethodSettings(Settings):
    stages: Annotated[int, Field(ge=1, le=8)] = 3
    count_weight: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    first_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5


class SynthesisSettings(Settings):
    brightness: float = 1.0


def blocks(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """The means of 4 x 4 blocks of an image in [0, 1], as a vector of norm at most 1."""
    images = images.mean(axis=1)
    rows = [part.mean(axis=1) for part in np.array_split(images, BLOCKS, axis=1)]
    cells = [part.mean(axis=1) for row in rows for part in np.array_split(row, BLOCKS, axis=1)]
    return np.stack(cells, axis=1) / BLOCKS


def class_means(statistics: Statistics, settings: MethodSettings) -> NDArray[np.float64]:
    counts = np.maximum(statistics.sums["count"] / settings.count_weight, 1.0)
    sums = statistics.sums["sums"] / (0.5 * math.sqrt(1.0 - settings.count_weight**2))
    return sums / counts + statistics.stage_input.get("mean", np.zeros(WIDTH))


class Staged(Method[MethodSettings, SynthesisSettings], family=NAME):
    def stages(self, settings: MethodSettings) -> int:
        return settings.stages

    def layout(self, settings: MethodSettings, run: RunDescription, stage: int) -> Layout:
        classes = len(run.classes)
        return Layout((class_segment("sums", WIDTH, classes), class_segment("count", 1, classes)))

    def plan(self, request: ReleaseRequest, settings: MethodSettings) -> Plan:
        if request.stage and {name: array.shape for name, array in request.stage_input.items()} != {"mean": (WIDTH,)}:
            raise ValueError("the input of a stage of the method 'staged' is a mean")
        run = RunDescription.of(request)
        layouts = [self.layout(settings, run, stage) for stage in range(settings.stages)]
        return gaussian_plan(request, layouts, settings.first_share)

    def stage_input(
        self, statistics: Sequence[Statistics], settings: MethodSettings, run: RunDescription
    ) -> Mapping[str, NDArray]:
        mean = class_means(statistics[-1], settings).mean(axis=0)
        return {"mean": np.clip(mean, 0.0, 1.0 / BLOCKS).astype(np.float32)}

    def count_weight(self, settings: MethodSettings, stage: int) -> float:
        return settings.count_weight

    def synthesise(
        self,
        statistics: Sequence[Statistics],
        settings: MethodSettings,
        synthesis: SynthesisSettings,
        run: RunDescription,
    ) -> LabelledSet:
        assert len(statistics) == settings.stages
        means = np.mean([class_means(stage, settings) for stage in statistics], axis=0)
        grid = (np.clip(means * BLOCKS, 0.0, 1.0) * 255).round().astype(np.uint8).reshape(-1, 1, BLOCKS, BLOCKS)
        channels, *sides = run.image_shape
        side = [np.arange(size) * BLOCKS // size for size in sides]
        pictures = grid[:, :, side[0]][:, :, :, side[1]].repeat(channels, axis=1)
        labels = np.arange(len(run.classes)).repeat(run.images_per_class)
        return LabelledSet(pictures.repeat(run.images_per_class, axis=0), labels, run.classes)


METHOD = Staged(NAME, "block means in stages", "none")


class StagedMechanism(Mechanism[MethodSettings]):
    def run(
        self,
        records: Records,
        request: ReleaseRequest,
        settings: MethodSettings,
        plan: Plan,
        entropy: Entropy,
        progress: Progress,
    ) -> Privatised:
        middle: Mapping[str, NDArray] = request.stage_input

        def contributions(images: NDArray[np.float32], _labels: NDArray[np.int64]) -> Contribution:
            rows = np.full((len(images), WIDTH + 1), settings.count_weight, dtype=np.float32)
            moved = blocks(images) - middle.get("mean", np.float32(0.0))  # of norm at most 2
            rows[:, :-1] = 0.5 * math.sqrt(1.0 - settings.count_weight**2) * moved
            return rows, {}

        total = METHOD.layout(settings, RunDescription.of(request), request.stage)
        return privatised_sum(records, total, contributions, plan, entropy, progress)


MECHANISM = StagedMechanism()


def register() -> None:
    """For processes of their own, which end before anybody minds."""
    METHODS[NAME] = METHOD
    sys.modules[PRIVATE_HALF] = sys.modules[__name__]


@pytest.fixture
def staged_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, NAME, METHOD)
    monkeypatch.setitem(sys.modules, PRIVATE_HALF, sys.modules[__name__])
