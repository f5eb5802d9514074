"""A small run of DP-GENG: statistics of a few stages, without a silo."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.dp_geng.settings import MethodSettings
from dpdd.common.methods.dp_geng.specification import count_weight, layout, part_of, stages
from dpdd.common.methods.dp_geng.synthesis import stage_input
from dpdd.common.synthesis.statistics import Statistics
from dpdd.common.wire.request import ReleaseRequest

NAMES, SHAPE, SEED = ("ant", "bee", "cat"), (1, 8, 8), 4
RUN = RunDescription(NAMES, SHAPE, SEED, images_per_class=2)
SMALL: dict[str, Any] = {
    "generator_settings": {"features": 20},
    "generator_synthesis": {"steps": 3},
    "generated_per_class": 12,
    "draws": 3,
    "networks": 2,
    "extractor_epochs": 1,
    "width": 4,
    "depth": 2,
    "auxiliary_images": 12,
    "expert_width": 4,
    "expert_depth": 2,
    "expert_epochs": 2,
    "expert_steps": 3,
    "rate": 0.5,
    "expert_rate": 0.5,
}


def settings_of(**changes: Any) -> MethodSettings:
    return MethodSettings(**{**SMALL, **changes})


def request_of(
    settings: MethodSettings, epsilon: float = 1.0, stage: int = 0, inputs: dict[str, NDArray] | None = None
) -> ReleaseRequest:
    return ReleaseRequest(
        "small",
        "dp-geng",
        settings.on_wire(),
        epsilon,
        1e-5,
        NAMES,
        SHAPE,
        public_seed=SEED,
        stage=stage,
        stage_input=inputs or {},
    )


def statistics_of(settings: MethodSettings, silos: int = 1, records: int = 90) -> list[Statistics]:
    """Of every stage: counts that are right, other sums drawn at random, no noise."""
    generator, found = np.random.Generator(np.random.PCG64(1)), []
    for stage in range(stages(settings)):
        inputs = dict(stage_input(found, settings, RUN)) if stage else {}
        sums = {
            segment.name: generator.standard_normal((segment.rows, segment.width))
            for segment in layout(settings, RUN, stage).segments
        }
        weight = count_weight(settings, stage)
        assert weight is not None
        sums["count"] = np.full((len(NAMES), 1), weight * records / len(NAMES))
        found.append(Statistics(sums, 1e-6, silos, inputs))
        assert part_of(settings, stage)
    return found
