"""Matching (Dosser, NDPDC, PSG, DM), the private half: sums of clipped signals over Poisson samples, draw by draw.

Event: for each draw one Gaussian over all classes' sums and counts, on a fresh Poisson sample of the records; all draws
are one release. Where auxiliary images are generated, a plain Gaussian (DP-MERF's class sums) comes before them as a
stage of its own, and both are reserved together.
Sensitivity: in a draw a sampled record adds (√(1-a²)·v, a) to the row of its class, with ‖v‖ clipped to 1, so its
contribution has norm 1; `ClippedSum` enforces that in integers, and `SampledSum` that nobody is in a draw who was not
sampled for it. One record more or less changes a draw's sum by that contribution, with probability `rate`.
Composition: σ, rate and number of draws are fixed by the request, whatever the auxiliary images are, so each step has
the same dominating pair of privacy losses however the second stage was chosen, and these compose adaptively.
Public: class list, shape, networks, views and clip norms (from the request's seed and its auxiliary images), the
sampling rate. Private: everything else: who was sampled, how many, counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from dpdd.client.mechanisms import dp_merf
from dpdd.client.mechanisms.base import (
    Contribution,
    Contributions,
    Mechanism,
    Plan,
    independent_of_batch_position,
    padded,
)
from dpdd.client.records.records import Records
from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.matching.settings import COUNT, SIGNAL, MethodSettings
from dpdd.common.methods.matching.signals import MOST_FEATURES, Draw
from dpdd.common.methods.matching.specification import (
    auxiliary,
    check_shape,
    draw_layout,
    embedding,
    layout,
    matching_stage,
    signal_settings,
    signals,
    stage_input_shapes,
)
from dpdd.common.models.random_net import feature_count
from dpdd.common.privacy.accounting import EXACT, PLD, Guarantee, calibrate, guarantee
from dpdd.common.privacy.clipping import Layout
from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.events import Event, Gaussian, NonPrivate, PoissonGaussian, compose
from dpdd.common.privacy.privatise import Privatised, combine, noise_distance, numbered, privatise
from dpdd.common.privacy.sampling import SampledSum, sampled_event
from dpdd.common.progress import Progress
from dpdd.common.wire.parsing import MOST_BYTES, MOST_HEADER
from dpdd.common.wire.quantise import quantise
from dpdd.common.wire.request import ReleaseRequest

BATCH = 16
"""Records at a time: few enough that activations stay in the cache, and that their memory is not mapped anew."""

MOST_NUMBERS = 1 << 28
"""What a coordinator can make a silo hold at once."""

LEAST_NOISE = 0.25
"""The least σ of a draw. If samples are so rare that δ alone covers them, no noise at all would be (ε, δ)-private."""


class MatchingMechanism(Mechanism[MethodSettings]):
    """Sums of signals over Poisson samples, draw by draw."""

    def plan(self, request: ReleaseRequest, settings: MethodSettings) -> Plan:
        """All draws as one release, after a Gaussian one where auxiliary images are generated."""
        _check(request, settings)
        run, last = RunDescription.of(request), matching_stage(settings)
        each = draw_layout(settings, run)
        first = layout(settings, run, 0) if last else each
        coordinates, size = first.coordinates, None
        if request.stage == last:
            coordinates, size = settings.draws * each.coordinates, _size(settings, each)
        if math.isinf(request.epsilon):
            return Plan(NonPrivate(), Guarantee(math.inf, request.delta, "none"), 0.0, coordinates, size)

        def events(sigma: float) -> list[Event]:
            sigma = max(sigma, LEAST_NOISE)
            draws = sampled_event(sigma, settings.rate, settings.draws)
            return [Gaussian(sigma * _first_scale(settings)), draws] if last else [draws]

        def distances(sigma: float) -> list[float]:
            sigma = max(sigma, LEAST_NOISE)
            draws = settings.draws * noise_distance(sampled_event(sigma, settings.rate, 1), each)
            return [noise_distance(Gaussian(sigma * _first_scale(settings)), first), draws] if last else [draws]

        def whole(sigma: float) -> Event:
            return compose(*events(sigma))

        sigma = calibrate(whole, request.epsilon, request.delta)
        slack = (1.0 + math.exp(request.epsilon)) * math.fsum(distances(sigma))
        if slack >= request.delta:
            raise ValueError(
                f"at epsilon {request.epsilon:g} the distance of so much noise to ideal noise costs {slack:.2g}, which "
                f"is more than delta, {request.delta:g}; ask for fewer draws, a smaller epsilon or a larger delta"
            )
        if guarantee(whole(sigma), request.delta - slack).epsilon > request.epsilon:  # most often it is so little
            sigma = calibrate(whole, request.epsilon, request.delta - slack)
        promised = Guarantee(request.epsilon, request.delta, EXACT if settings.rate == 1.0 else PLD)
        event, distance = events(sigma)[request.stage], distances(sigma)[request.stage]
        if not last:
            return Plan(event, promised, distance, coordinates, size)
        return Plan(event, promised, distance, coordinates, size, whole(sigma), math.fsum(distances(sigma)))

    def run(
        self,
        records: Records,
        request: ReleaseRequest,
        settings: MethodSettings,
        plan: Plan,
        entropy: Entropy,
        progress: Progress,
    ) -> Privatised:
        """Draw after draw: sample, sum, privatise. Nothing of a draw but its noisy sums is kept for the next."""
        if request.stage < matching_stage(settings):
            return dp_merf.MECHANISM.run(records, request, embedding(settings), plan, entropy, progress)
        described, classes = RunDescription.of(request), len(request.classes)
        draws = signals(settings, auxiliary(settings, request.stage_input, described), described)
        sums = draw_layout(settings, described)
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
            _add(total, records, contributions, batches[kind])
            piece = privatise(total, event, entropy)
            pieces.append(numbered(piece, number))
            progress("summing draws", number + 1, settings.draws)
        return combine(*pieces).post_process(lambda arrays: _stacked(arrays, settings))


def _size(settings: MethodSettings, each: Layout) -> int:
    """What is sent of all draws, in bytes; counts are added up before."""
    counts = each.classes
    return settings.draws * (each.coordinates - counts) * (2 if settings.encoding == "short" else 8) + 8 * counts


def _first_scale(settings: MethodSettings) -> float:
    """σ of the first stage, in units of a draw's: `draws` samples at `rate` weigh about draws · rate² in 1/σ²."""
    share = settings.auxiliary_share
    return math.sqrt((1.0 - share) / share / settings.draws) / settings.rate


def _check(request: ReleaseRequest, settings: MethodSettings) -> None:
    """ConfigError unless the request is one that `run` can answer."""
    if settings.dimensions == "auto":
        raise ConfigError('the request leaves the number of dimensions open; a coordinator fills in "auto" itself')
    run = RunDescription.of(request)
    check_shape(settings, run)
    features = feature_count(request.shape, settings.width, settings.depth)
    if features > MOST_FEATURES:
        raise ConfigError(f"a network with {features} features is too wide; {MOST_FEATURES} is the most")
    if settings.dimensions > features:
        raise ConfigError(f"a network with {features} features has no subspace of {settings.dimensions} dimensions")
    _check_size(request, settings, features)
    expected = {}
    if request.stage:
        expected = stage_input_shapes(settings, run)
    given = {name: array.shape for name, array in request.stage_input.items()}
    types = {name: array.dtype for name, array in request.stage_input.items()}
    if given != expected or (given and types != {"images": np.uint8, "labels": np.int64}):
        raise ConfigError(
            f"the request brings auxiliary arrays {given}, and should bring {expected}, images in bytes and labels in "
            "64 bits"
        )


def _check_size(request: ReleaseRequest, settings: MethodSettings, features: int) -> None:
    """ConfigError where a silo could not hold, or not send, what the request makes of even the fewest records."""
    classes, run = len(request.classes), RunDescription.of(request)
    length = signal_settings(settings, run).length
    sums = settings.draws * classes * (length + 1)
    batch = BATCH * max(length, settings.width * math.prod(request.shape[1:]))
    auxiliary = (settings.auxiliary_images + classes) * max(features, math.prod(request.shape))
    largest = max(sums, batch, auxiliary, classes * features)
    if largest > MOST_NUMBERS:
        raise ConfigError(
            f"the request takes {largest} numbers at once, and a silo holds {MOST_NUMBERS}; ask for fewer draws, fewer "
            "auxiliary images or dimensions, or narrower networks"
        )
    size = _size(settings, draw_layout(settings, run))
    if size > MOST_BYTES - MOST_HEADER:
        raise ConfigError(
            f"the release would have {size} bytes, and {MOST_BYTES - MOST_HEADER} can be sent; ask for fewer draws, or "
            'for encoding = "short"'
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


def _add(total: SampledSum, records: Records, contributions: Contributions, batch: int) -> None:
    """Add every member of the sample, in batches of one shape: nobody's contribution depends on who else is in."""
    members = total.members
    for start in range(0, len(members), batch):
        part = members[start : start + batch]
        labels = records.labels[part]
        rows, _ = contributions(*padded(records.read(part), labels, batch))
        total.add_members(part, rows[: len(part)], labels)


def _stacked(arrays: Mapping[str, NDArray], settings: MethodSettings) -> Mapping[str, NDArray]:
    """All draws in one array; their counts added up (`specification.count_weight` says what that is worth)."""
    draws = range(settings.draws)
    counts = np.sum([arrays[f"{number} {COUNT}"] for number in draws], axis=0)
    stacked = {
        SIGNAL: np.concatenate([arrays[f"{number} {SIGNAL}"] for number in draws]),
        COUNT: np.rint(counts / math.sqrt(settings.draws)).astype(np.int64),
    }
    return quantise(stacked, SIGNAL) if settings.encoding == "short" else stacked


MECHANISM = MatchingMechanism()
