"""Decentralised mode: the silo turns what its mechanism privatised into a finished set, and ships that instead.

Privacy: nothing here sees a record. The set is a function of the noisy sums and of the request, so by post-processing
it has the mechanism's event and guarantee, whatever the synthesis does.

A method with several stages runs them all here: the silo computes each input from its own noisy sums, as the
coordinator would from everybody's. The release has the events of all stages, which is what was reserved.

A class whose noisy count is lost in its noise is left out: images of it would be made from noise alone, under a label
that the silo may have no record of. The other noisy counts go with the set, so that the coordinator's union can take a
class from the silos that have most of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdd.client.mechanisms.base import Plan, Progress, mechanism
from dpdd.client.records.records import Records
from dpdd.common.config import Settings, validate
from dpdd.common.methods.registry import Method
from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.events import compose
from dpdd.common.privacy.privatise import Privatised, combine, numbered
from dpdd.common.synthesis.distilled_set import DistilledSet, DistilledSetSettings, distilled_set_settings, to_arrays
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.statistics import Statistics, lost_in_noise, of_one_silo
from dpdd.common.wire.request import ReleaseRequest


def check(request: ReleaseRequest, method: Method) -> None:
    """ConfigError when the request's synthesis settings are not ones that the method has."""
    _synthesis_settings(distilled_set_settings(request), method.synthesis(), request.method)


def planned(plan: Plan, request: ReleaseRequest, stages: int) -> Plan:
    """What the mechanism plans for all its stages together, with what a set of the asked size weighs."""
    images = distilled_set_settings(request).images_per_class * len(request.classes)
    whole = plan.whole or compose(*[plan.event] * stages)  # without noise there is no whole, just as often nothing
    distance = plan.distance if plan.whole_distance is None else plan.whole_distance
    return replace(plan, event=whole, distance=distance, size=images * (math.prod(request.shape) + 8))


def run_stages(
    records: Records, request: ReleaseRequest, method: Method, settings: Settings, entropy: Entropy, progress: Progress
) -> list[tuple[ReleaseRequest, Privatised]]:
    """What each stage would ask, and its answer, one after the other: each input comes from the answers before it."""
    found: list[tuple[ReleaseRequest, Privatised]] = []
    for stage in range(method.stages(settings)):
        stage_input: Mapping[str, NDArray] = {}
        if stage:
            stage_input = method.synthesis().stage_input(
                _statistics(found),
                settings,
                classes=request.classes,
                shape=request.shape,
                public_seed=request.public_seed,
            )
        asked = replace(request, stage=stage, stage_input=stage_input)
        plan = mechanism(method).plan(asked, settings)
        found.append((asked, mechanism(method).run(records, asked, settings, plan, entropy, progress)))
    return found


def synthesise_locally(
    answered: Sequence[tuple[ReleaseRequest, Privatised]],
    request: ReleaseRequest,
    method: Method,
    settings: Settings,
    progress: Progress,
) -> Privatised:
    """One release with images and labels for arrays, made by the method's own synthesis from the stages' answers."""
    module, asked = method.synthesis(), distilled_set_settings(request)

    def synthesise(_arrays: Mapping[str, NDArray]) -> Mapping[str, NDArray]:
        statistics = _statistics(answered)
        made: LabelledSet = module.synthesise(
            statistics,
            settings,
            _synthesis_settings(asked, module, request.method),
            classes=request.classes,
            shape=request.shape,
            images_per_class=asked.images_per_class,
            public_seed=request.public_seed,
            progress=progress,
        )
        return to_arrays(without_lost_classes(made, statistics[0], method.count_weight(settings, 0)))

    return combine(*(numbered(answer, stage) for stage, (_, answer) in enumerate(answered))).post_process(synthesise)


def _statistics(answered: Sequence[tuple[ReleaseRequest, Privatised]]) -> list[Statistics]:
    return [of_one_silo(answer.arrays, answer.event, asked.stage_input) for asked, answer in answered]


def without_lost_classes(made: LabelledSet, statistics: Statistics, count_weight: float | None) -> DistilledSet:
    """`made` without the classes that the noisy counts say nothing about (all of it where no counts were released)."""
    if count_weight is None:
        return DistilledSet(made)
    noisy = statistics.sums["count"][:, 0]
    lost = lost_in_noise(noisy, statistics.noise)
    kept = ~lost[made.labels]
    soft = None if made.soft is None else np.ascontiguousarray(made.soft[kept])
    left = replace(made, images=np.ascontiguousarray(made.images[kept]), labels=made.labels[kept], soft=soft)
    return DistilledSet(left, np.where(lost, 0.0, noisy / count_weight).astype(np.float32))


def _synthesis_settings(asked: DistilledSetSettings, module: ModuleType, name: str) -> Any:
    return validate(asked.synthesis, module.SynthesisSettings, f"synthesis settings of {name}")
