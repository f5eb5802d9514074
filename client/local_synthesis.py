"""Local synthesis (decentralised mode): the silo makes a finished set of what it privatised, and ships that instead.

Privacy: nothing here sees a record. The set is a function of the noisy sums and of the request, so by post-processing
it has the mechanism's event and guarantee, whatever the synthesis does.

A method with several stages runs them all here: the silo computes each stage's input from its own noisy sums, as the
coordinator would from everybody's. The release has the events of all stages, which is what was reserved.

A class whose noisy count is lost in its noise is left out: images of it would be made from noise alone, under a label
that the silo may have no record of. The other noisy counts go with the set, so that the coordinator's union can take a
class from the silos that have most of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dpdd.client.mechanisms.base import mechanism
from dpdd.client.records.records import Records
from dpdd.common.config import Settings
from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.registry import AnyMethod
from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.privatise import Privatised, combine, numbered
from dpdd.common.progress import Progress
from dpdd.common.synthesis.distilled_set import DistilledSet, distilled_set_settings, to_arrays
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.statistics import Statistics, lost_in_noise, of_one_silo
from dpdd.common.wire.request import ReleaseRequest


def run_stages(
    records: Records,
    request: ReleaseRequest,
    method: AnyMethod,
    settings: Settings,
    entropy: Entropy,
    progress: Progress,
) -> list[tuple[ReleaseRequest, Privatised]]:
    """What each stage would ask, and its answer, one after the other: its input comes from the answers before it."""
    answered: list[tuple[ReleaseRequest, Privatised]] = []
    statistics: list[Statistics] = []
    for stage in range(method.stages(settings)):
        stage_input: Mapping[str, NDArray] = {}
        if stage:
            statistics += _statistics(answered[-1:])
            stage_input = method.stage_input(statistics, settings, RunDescription.of(request))
        asked = replace(request, stage=stage, stage_input=stage_input)
        plan = method.plan(asked, settings)
        answered.append((asked, mechanism(method).run(records, asked, settings, plan, entropy, progress)))
    return answered


def synthesise_locally(
    answered: Sequence[tuple[ReleaseRequest, Privatised]],
    request: ReleaseRequest,
    method: AnyMethod,
    settings: Settings,
    progress: Progress,
) -> Privatised:
    """The finished set, made from all stages' answers and the request alone."""
    asked = distilled_set_settings(request)

    def synthesise(_arrays: Mapping[str, NDArray]) -> Mapping[str, NDArray]:
        statistics = _statistics(answered)
        run = RunDescription.of(request, asked.images_per_class, progress=progress, priors=asked.priors)
        dataset = method.synthesise(statistics, settings, method.synthesis_settings(asked.synthesis), run)
        if not isinstance(dataset, LabelledSet):
            raise ConfigError(f"{method.name} makes a model, not a set: it has no distilled set to release")
        return to_arrays(without_lost_classes(dataset, statistics[0], method.count_weight(settings, 0)))

    return combine(*(numbered(answer, stage) for stage, (_, answer) in enumerate(answered))).post_process(synthesise)


def _statistics(answered: Sequence[tuple[ReleaseRequest, Privatised]]) -> list[Statistics]:
    return [of_one_silo(answer.arrays, answer.event, asked.stage_input) for asked, answer in answered]


def without_lost_classes(dataset: LabelledSet, statistics: Statistics, count_weight: float | None) -> DistilledSet:
    """`dataset` without the classes that noisy counts say nothing about (all of it where no counts were released)."""
    if count_weight is None:
        return DistilledSet(dataset)
    noisy = statistics.sums["count"][:, 0]
    lost = lost_in_noise(noisy, statistics.noise)
    kept = ~lost[dataset.labels]
    soft = None if dataset.soft is None else np.ascontiguousarray(dataset.soft[kept])
    records = np.ascontiguousarray(dataset.records[kept])
    left = replace(dataset, records=records, labels=dataset.labels[kept], soft=soft)
    return DistilledSet(left, np.where(lost, 0.0, noisy / count_weight).astype(np.float32))
