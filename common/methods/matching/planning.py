"""Matching, planned: what a request asks for is checked, and the noise of its draws calibrated."""

from __future__ import annotations

import math

import numpy as np

from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.matching.settings import COUNT, SIGNAL, MethodSettings
from dpdd.common.methods.matching.signals import FOR_A_NORM, MOST_FEATURES, kept_networks, network_bytes
from dpdd.common.methods.matching.specification import check_shape, draw_layout, signal_settings, stage_input_shapes
from dpdd.common.methods.matching.stages import generator_of, layout, matching_stage
from dpdd.common.methods.plan import LEAST_NOISE, ArrayType, Plan
from dpdd.common.models.random_net import feature_count
from dpdd.common.privacy.accounting import Guarantee, calibrate, guarantee
from dpdd.common.privacy.events import Event, Gaussian, NonPrivate, compose
from dpdd.common.privacy.privatise import noise_distance
from dpdd.common.privacy.sampling import sampled_event
from dpdd.common.wire.parsing import MOST_BYTES, MOST_HEADER
from dpdd.common.wire.quantise import STEP
from dpdd.common.wire.request import ReleaseRequest

BATCH = 16
"""Records at a time: few enough that activations stay in the cache, and that their memory is not mapped anew."""

MOST_NUMBERS = 1 << 28
"""What a coordinator can make a silo hold at once."""


def plan(request: ReleaseRequest, settings: MethodSettings) -> Plan:
    """All draws as one release, after a generator's Gaussian ones where auxiliary images are generated."""
    _check(request, settings)
    run, last = RunDescription.of(request), matching_stage(settings)
    each = draw_layout(settings, run)
    first = [layout(settings, run, stage) for stage in range(last)]
    coordinates, released = settings.draws * each.coordinates, released_arrays(settings, run)
    if request.stage < last:
        own = generator_of(settings).planned(request)
        coordinates, released = own.coordinates, dict(own.array_types)
    if math.isinf(request.epsilon):
        return Plan(NonPrivate(), Guarantee(math.inf, request.delta, "none"), 0.0, coordinates, released)

    def events(sigma: float) -> list[Event]:
        return stage_events(settings, max(sigma, LEAST_NOISE))

    def distances(sigma: float) -> list[float]:
        sigma = max(sigma, LEAST_NOISE)
        draws = settings.draws * noise_distance(sampled_event(sigma, settings.rate, 1), each)
        return [noise_distance(Gaussian(sigma * _first_scale(settings)), sums) for sums in first] + [draws]

    def whole(sigma: float) -> Event:
        return compose(*events(sigma))

    sigma = calibrate(whole, request.epsilon, request.delta)
    slack = (1.0 + math.exp(request.epsilon)) * math.fsum(distances(sigma))
    if slack >= request.delta:
        raise ValueError(
            f"at epsilon {request.epsilon:g} the distance of so much noise to ideal noise costs {slack:.2g}, which "
            f"is more than delta, {request.delta:g}; ask for fewer draws, a smaller epsilon or a larger delta"
        )
    found = guarantee(whole(sigma), request.delta - slack)
    if found.epsilon > request.epsilon:  # most often the slack is so little that it is not
        sigma = calibrate(whole, request.epsilon, request.delta - slack)
    promised = Guarantee(request.epsilon, request.delta, found.accountant)
    event, distance = events(sigma)[request.stage], distances(sigma)[request.stage]
    if not last:
        return Plan(event, promised, distance, coordinates, released)
    return Plan(event, promised, distance, coordinates, released, whole(sigma), math.fsum(distances(sigma)))


def stage_events(settings: MethodSettings, sigma: float) -> list[Event]:
    """What each stage is, where a draw has this noise: a generator's plain Gaussians, and all draws."""
    first = Gaussian(sigma * _first_scale(settings)) if matching_stage(settings) else None
    draws = sampled_event(sigma, settings.rate, settings.draws)
    return [draws] if first is None else [*[first] * matching_stage(settings), draws]


def released_arrays(settings: MethodSettings, run: RunDescription) -> dict[str, ArrayType]:
    """All draws in one array, with counts that were added up before."""
    classes, short = len(run.classes), settings.encoding == "short"
    shape = (settings.draws * classes, signal_settings(settings, run).length)
    released = {SIGNAL: ArrayType("int16" if short else "int64", shape), COUNT: ArrayType("int64", (classes, 1))}
    return {**released, SIGNAL + STEP: ArrayType("int64", (1, 1))} if short else released


def _first_scale(settings: MethodSettings) -> float:
    """σ of each of a generator's stages, in units of a draw's: `draws` samples at `rate` weigh about draws · rate² in
    1/σ².
    """
    share = settings.auxiliary_share
    return math.sqrt(matching_stage(settings) * (1.0 - share) / share / settings.draws) / settings.rate


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
    check_size(request, settings, features)
    if 0 < request.stage < matching_stage(settings):
        return  # the generator's own plan looks at what it is asked with
    expected = stage_input_shapes(settings, run) if request.stage else {}
    given = {name: array.shape for name, array in request.stage_input.items()}
    types = {name: array.dtype for name, array in request.stage_input.items()}
    if given != expected or (given and types != {"images": np.uint8, "labels": np.int64}):
        raise ConfigError(
            f"the request brings auxiliary arrays {given}, and should bring {expected}, images in bytes and labels in "
            "64 bits"
        )


def check_size(request: ReleaseRequest, settings: MethodSettings, features: int) -> None:
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
    size = sum(each.bytes for each in released_arrays(settings, run).values())
    if size > MOST_BYTES - MOST_HEADER:
        raise ConfigError(
            f"the release would have {size} bytes, and {MOST_BYTES - MOST_HEADER} can be sent; ask for fewer draws, or "
            'for encoding = "short"'
        )


def working_memory(settings: MethodSettings, run: RunDescription, stage: int) -> int:
    """Bytes, by what is alive at once: kept networks, fitting a subspace, a batch, and the sums of all draws twice.

    A batch counts three times: each view takes other steps, and freed blocks of other sizes lie idle in between.
    """
    if stage < matching_stage(settings):
        generator = generator_of(settings)
        return generator.method.working_memory(generator.settings, run, stage)
    of, pixels = signal_settings(settings, run), math.prod(run.shape)
    count = feature_count(run.shape, settings.width, settings.depth)
    kept = kept_networks(of) * network_bytes(of)
    images = settings.auxiliary_images + len(run.classes)
    fitting = 8 * images * (pixels + 5 * count) + 24 * count * max(of.dimensions, 1) + 8 * min(images, count) ** 2 * 3
    activations = settings.width * math.prod(run.shape[1:]) * 2  # of all layers: each has a quarter of the one before
    gradients = 3 * of.length if of.kind == "gradients" else 0
    batch = 4 * max(BATCH, FOR_A_NORM) * (24 * activations + 8 * pixels + 4 * count + gradients)
    return kept + fitting + batch + 40 * settings.draws * len(run.classes) * (of.length + 1)
