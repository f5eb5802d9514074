"""DP-CDA, the private half: sums of Poisson samples of the records, mixture by mixture.

Event: for each mixture one Gaussian over all classes' sums and counts, on a fresh Poisson sample of the records; all
mixtures are one release.
Sensitivity: in a mixture a sampled record adds (√(1-a²)·v, a) to the row of its class, with ‖v‖ at most 1, so its
contribution has norm 1; `ClippedSum` enforces that in integers, and `SampledSum` that nobody is in a mixture who was
not sampled for it. One record more or less changes a mixture's sum by that contribution, with probability `rate`. It
has one class, so the classes cost no more than one of them.
Public: class list, shape or schema, the scale of records (a grey level and a norm), the sampling rate and the number of
mixtures. Private: everything else: who was sampled, how many, means, deviations and counts.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dpdd.client.mechanisms.base import (
    Contribution,
    Contributions,
    Mechanism,
    add_sample,
    independent_of_batch_position,
    stacked,
)
from dpdd.client.records.records import Records
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.dp_cda.settings import COUNT, MIXTURE, MixingSettings
from dpdd.common.methods.dp_cda.specification import BATCH, mixture_layout, points, width
from dpdd.common.methods.plan import Plan
from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.events import Gaussian, NonPrivate, PoissonGaussian
from dpdd.common.privacy.privatise import Privatised, combine, numbered, privatise
from dpdd.common.privacy.sampling import SampledSum, sampled_event
from dpdd.common.progress import Progress
from dpdd.common.wire.request import ReleaseRequest


class DPCDAMechanism(Mechanism[MixingSettings]):
    """Sums of Poisson samples, mixture by mixture."""

    def run(
        self,
        records: Records,
        request: ReleaseRequest,
        settings: MixingSettings,
        plan: Plan,
        entropy: Entropy,
        progress: Progress,
    ) -> Privatised:
        """Mixture after mixture: sample, sum, privatise. Nothing of one but its noisy sums is kept for the next."""
        run = RunDescription.of(request)
        contributions, sums = _contributions(settings, run), mixture_layout(settings, run)
        assert isinstance(plan.event, Gaussian | PoissonGaussian | NonPrivate)
        event = plan.event if isinstance(plan.event, NonPrivate) else sampled_event(plan.event.sigma, settings.rate, 1)
        batch = BATCH
        if not independent_of_batch_position(contributions, (batch, *request.shape), len(run.classes)):
            batch = 1
        pieces = []
        for number in range(settings.mixtures_per_class):
            total = SampledSum(sums, settings.rate, len(records), entropy)
            add_sample(total, records, contributions, batch)
            pieces.append(numbered(privatise(total, event, entropy), number))
            progress("mixing records", number + 1, settings.mixtures_per_class)
        return combine(*pieces).post_process(
            lambda arrays: stacked(
                arrays, MIXTURE, COUNT, settings.mixtures_per_class, short=settings.encoding == "short"
            )
        )


def _contributions(settings: MixingSettings, run: RunDescription) -> Contributions:
    """(√(1-a²)·v, a) of every record, with v of norm at most 1."""
    share = settings.count_share

    def contributions(records: NDArray[np.float32], _labels: NDArray[np.int64]) -> Contribution:
        rows = np.empty((len(records), width(run) + 1), dtype=np.float32)
        rows[:, :-1] = points(records, settings, run) * np.float32(math.sqrt(1.0 - share**2))
        rows[:, -1] = share
        return rows, {}

    return contributions


MECHANISM = DPCDAMechanism()
