"""Matching (Dosser, NDPDC, PSG, DM), the private half: sums of clipped signals over Poisson samples, draw by draw.

Event: for each draw one Gaussian over all classes' sums and counts, on a fresh Poisson sample of the records; all draws
are one release. Where auxiliary images are generated, the generator's plain Gaussians (DP-MERF's class sums, rounds of
votes) come before them as stages of their own, by its own private half, where their sensitivity is argued; all stages
are reserved together.
Sensitivity: in a draw a sampled record adds (√(1-a²)·v, a) to the row of its class, with ‖v‖ clipped to 1, so its
contribution has norm 1; `ClippedSum` enforces that in integers, and `SampledSum` that nobody is in a draw who was not
sampled for it. One record more or less changes a draw's sum by that contribution, with probability `rate`.
Composition: σ, rate and number of draws are fixed by the request, whatever the auxiliary images are, so each step has
the same dominating pair of privacy losses however later stages were chosen, and these compose adaptively.
Public: class list, shape, networks, views and clip norms (from the request's seed and its auxiliary images), the
sampling rate. Private: everything else: who was sampled, how many, counts.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from dpdd.client.mechanisms.base import (
    Contribution,
    Contributions,
    Mechanism,
    add_sample,
    independent_of_batch_position,
    mechanism,
    stacked,
)
from dpdd.client.records.records import Records
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.matching.planning import BATCH
from dpdd.common.methods.matching.settings import COUNT, SIGNAL, MethodSettings
from dpdd.common.methods.matching.signals import Draw, Signals
from dpdd.common.methods.matching.specification import auxiliary, draw_layout, signals
from dpdd.common.methods.matching.stages import generator_of, matching_stage
from dpdd.common.methods.plan import Plan
from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.events import Gaussian, NonPrivate, PoissonGaussian
from dpdd.common.privacy.privatise import Privatised, combine, numbered, privatise
from dpdd.common.privacy.sampling import SampledSum, sampled_event
from dpdd.common.progress import Progress
from dpdd.common.wire.request import ReleaseRequest


class MatchingMechanism(Mechanism[MethodSettings]):
    """Sums of signals over Poisson samples, draw by draw."""

    def run(
        self,
        records: Records,
        request: ReleaseRequest,
        settings: MethodSettings,
        plan: Plan,
        entropy: Entropy,
        progress: Progress,
    ) -> Privatised:
        """Draw after draw: sample, sum, privatise."""
        if request.stage < matching_stage(settings):
            generator = generator_of(settings)
            half = mechanism(generator.method)
            return half.run(records, generator.asked(request), generator.settings, plan, entropy, progress)
        described = RunDescription.of(request)
        draws = signals(settings, auxiliary(settings, request.stage_input, described), described)
        return released_draws(records, request, settings, draws, plan, entropy, progress)


def released_draws(
    records: Records,
    request: ReleaseRequest,
    settings: MethodSettings,
    draws: Signals,
    plan: Plan,
    entropy: Entropy,
    progress: Progress,
) -> Privatised:
    """All draws as one release. Nothing of a draw but its noisy sums is kept for the next."""
    sums, classes = draw_layout(settings, RunDescription.of(request)), len(request.classes)
    assert isinstance(plan.event, Gaussian | PoissonGaussian | NonPrivate)
    event = plan.event if isinstance(plan.event, NonPrivate) else sampled_event(plan.event.sigma, settings.rate, 1)
    batches: dict[object, int] = {}  # for each kind of view, as each takes other steps
    pieces = []
    for number in range(settings.draws):
        draw = draws.draw(number)
        contributions, kind = _contributions(draw, settings), draw.augmentation.kind
        if kind not in batches:
            batches[kind] = (
                BATCH if independent_of_batch_position(contributions, (BATCH, *request.shape), classes) else 1
            )
        total = SampledSum(sums, settings.rate, len(records), entropy)
        add_sample(total, records, contributions, batches[kind])
        piece = privatise(total, event, entropy)
        pieces.append(numbered(piece, number))
        progress("summing draws", number + 1, settings.draws)
    return combine(*pieces).post_process(
        lambda arrays: stacked(arrays, SIGNAL, COUNT, settings.draws, short=settings.encoding == "short")
    )


def _contributions(draw: Draw, settings: MethodSettings) -> Contributions:
    """(√(1-a²)·v, a) of every record, with v of norm at most 1."""
    weight = settings.count_share

    def contributions(images: NDArray[np.float32], labels: NDArray[np.int64]) -> Contribution:
        signals = draw.of_records(torch.from_numpy(images), torch.from_numpy(labels))
        norms = np.sqrt(np.einsum("ij,ij->i", signals, signals, dtype=np.float64))
        rows = np.empty((len(images), signals.shape[1] + 1), dtype=np.float32)
        rows[:, :-1] = signals * (math.sqrt(1.0 - weight**2) / np.maximum(norms, 1.0))[:, None]
        rows[:, -1] = weight
        return rows, {}

    return contributions


MECHANISM = MatchingMechanism()
