"""Decentralised mode: the silo turns what its mechanism privatised into a finished set, and ships that instead.

Privacy: nothing here sees a record. The set is a function of the noisy sums and of the request, so by post-processing
it has the mechanism's event and guarantee, whatever the synthesis does.

A class whose noisy count is lost in its noise is left out: images of it would be made from noise alone, under a label
that the silo may have no record of. The coordinator's union takes that class from other silos.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdd.client.mechanisms import Plan, Progress
from dpdd.common.config import Settings, validate
from dpdd.common.methods import Method
from dpdd.common.privacy.privatise import Privatised
from dpdd.common.synthesis.dataset import SyntheticSet
from dpdd.common.synthesis.distilled import DistilSettings, distil_settings, to_arrays
from dpdd.common.synthesis.statistics import Statistics, lost_in_noise, of_one_silo
from dpdd.common.wire.request import ReleaseRequest


def check(request: ReleaseRequest, method: Method) -> None:
    """ConfigError when the request's synthesis settings are not ones that the method has."""
    _synthesis_settings(distil_settings(request), method.synthesis(), request.method)


def planned(plan: Plan, request: ReleaseRequest) -> Plan:
    """The mechanism's plan, with what a set of the asked size weighs."""
    images = distil_settings(request).images_per_class * len(request.classes)
    return replace(plan, size=images * (math.prod(request.shape) + 8))


def distil(
    privatised: Privatised, request: ReleaseRequest, method: Method, settings: Settings, progress: Progress
) -> Privatised:
    """The same release with images and labels for arrays, made by the method's own synthesis."""
    module, asked = method.synthesis(), distil_settings(request)

    def synthesise(arrays: Mapping[str, NDArray]) -> Mapping[str, NDArray]:
        statistics = of_one_silo(arrays, privatised.event)
        made: SyntheticSet = module.synthesise(
            statistics,
            settings,
            _synthesis_settings(asked, module, request.method),
            classes=request.classes,
            shape=request.shape,
            images_per_class=asked.images_per_class,
            public_seed=request.public_seed,
            progress=progress,
        )
        return to_arrays(without_lost_classes(made, statistics))

    return privatised.post_process(synthesise)


def without_lost_classes(made: SyntheticSet, statistics: Statistics) -> SyntheticSet:
    """`made` without the classes that the noisy counts say nothing about (all of it where no counts were released)."""
    if "count" not in statistics.sums:
        return made
    lost = lost_in_noise(statistics.sums["count"][:, 0], statistics.noise)
    kept = ~lost[made.labels]
    soft = None if made.soft is None else np.ascontiguousarray(made.soft[kept])
    return SyntheticSet(np.ascontiguousarray(made.images[kept]), made.labels[kept], made.classes, soft)


def _synthesis_settings(asked: DistilSettings, module: ModuleType, name: str) -> Any:
    return validate(asked.synthesis, module.SynthesisSettings, f"synthesis settings of {name}")
