"""DP-GENG, planned: what a request asks for is checked, and the noise of all its parts calibrated together.

`shares` say which part has how much of the budget; that is by the central limit, which is good enough to divide. The
noise that makes the whole (ε, δ)-private is found by composing all parts' privacy-loss distributions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import DataKind, RunDescription
from dpdd.common.methods.dp_geng.expert import fresh, parameter_count
from dpdd.common.methods.dp_geng.published import sigma_by_equation_10
from dpdd.common.methods.dp_geng.settings import COUNT, GRADIENT, MethodSettings
from dpdd.common.methods.dp_geng.specification import (
    Part,
    expert_layout,
    generator_of,
    input_forms,
    layout,
    matching_settings,
    part_of,
    parts_in_order,
)
from dpdd.common.methods.matching import planning as matching_planning
from dpdd.common.methods.matching.signals import MOST_FEATURES
from dpdd.common.methods.matching.specification import check_shape, draw_layout
from dpdd.common.methods.plan import LEAST_NOISE, ArrayType, Plan
from dpdd.common.models.random_net import feature_count
from dpdd.common.privacy.accounting import Guarantee, calibrate, guarantee
from dpdd.common.privacy.clipping import Layout
from dpdd.common.privacy.events import Event, Gaussian, NonPrivate, PoissonGaussian, compose
from dpdd.common.privacy.privatise import noise_distance
from dpdd.common.privacy.sampling import sampled_event
from dpdd.common.wire.request import ReleaseRequest

BATCH = 16
"""Records at a time, in a silo."""
_LARGER = 1.0 + 1e-12
"""What adding up many distances, one after the other, may round them up by, and more."""


def plan(request: ReleaseRequest, settings: MethodSettings) -> Plan:
    """The cost and the arrays of a stage; all stages are calibrated, and reserved, together."""
    _check(request, settings)
    run = RunDescription.of(request)
    steps = _steps(request, settings, run)
    coordinates, released = _arrays(request, settings, run)
    if math.isinf(request.epsilon):
        return Plan(NonPrivate(), Guarantee(math.inf, request.delta, "none"), 0.0, coordinates, released)
    shares = _shares(settings)

    def events(noise: float) -> list[Event]:
        return [_event(settings, part, shares[part] / noise) for part, _ in steps]

    def distances(noise: float) -> list[float]:
        return [_distance(event, each) for event, (_, each) in zip(events(noise), steps, strict=True)]

    def whole(noise: float) -> Event:
        return compose(*events(noise))

    noise = calibrate(whole, request.epsilon, request.delta)
    slack = (1.0 + math.exp(request.epsilon)) * math.fsum(distances(noise))
    if slack >= request.delta:
        raise ValueError(
            f"at epsilon {request.epsilon:g} the distance of so much noise to ideal noise costs {slack:.2g}, which is "
            f"more than delta, {request.delta:g}; ask for fewer draws, fewer steps of a smaller expert, a smaller "
            "epsilon or a larger delta"
        )
    found = guarantee(whole(noise), request.delta - slack)
    if found.epsilon > request.epsilon:  # most often the slack is so little that it is not
        noise = calibrate(whole, request.epsilon, request.delta - slack)
    promised = Guarantee(request.epsilon, request.delta, found.accountant)
    event, distance = events(noise)[request.stage], distances(noise)[request.stage]
    if len(steps) == 1:
        return Plan(event, promised, distance, coordinates, released)
    return Plan(event, promised, distance, coordinates, released, whole(noise), math.fsum(distances(noise)))


def _shares(settings: MethodSettings) -> dict[Part, float]:
    """μ of each stage of a part, where all of them together have 1; a generator's stages have the same."""
    norm = math.hypot(*settings.shares)
    counts = dict(parts_in_order(settings))
    return {
        "generator": settings.shares[0] / norm / math.sqrt(counts["generator"]),
        "matching": settings.shares[1] / norm,
        "expert": settings.shares[2] / norm,
    }


def _event(settings: MethodSettings, part: Part, mu: float) -> Gaussian | PoissonGaussian:
    """A stage of a part that has `mu` of the budget, by eq. 9 where it is sampled."""
    if part == "generator":
        return Gaussian(max(1.0 / mu, LEAST_NOISE))
    rate, steps = (
        (settings.rate, settings.draws) if part == "matching" else (settings.expert_rate, settings.expert_steps)
    )
    if rate == 1.0:
        return Gaussian(max(math.sqrt(steps) / mu, LEAST_NOISE), steps)
    return PoissonGaussian(max(sigma_by_equation_10(mu, rate, steps), LEAST_NOISE), rate, steps)


def _steps(request: ReleaseRequest, settings: MethodSettings, run: RunDescription) -> list[tuple[Part, Layout]]:
    """Of every stage its part, and the layout of one sum."""
    found: list[tuple[Part, Layout]] = []
    for part, count in parts_in_order(settings):
        for _ in range(count):
            if part == "generator":
                found.append((part, layout(settings, run, len(found))))
            elif part == "matching":
                found.append((part, draw_layout(matching_settings(settings), run)))
            else:
                found.append((part, expert_layout(settings, run)))
    return found


def _distance(event: Event, each: Layout) -> float:
    """Of all sums of a stage to ideal noise."""
    if isinstance(event, PoissonGaussian):
        return event.steps * noise_distance(sampled_event(event.sigma, event.rate, 1), each) * _LARGER
    assert isinstance(event, Gaussian)
    return event.releases * noise_distance(Gaussian(event.sigma), each) * _LARGER


def _arrays(
    request: ReleaseRequest, settings: MethodSettings, run: RunDescription
) -> tuple[int, Mapping[str, ArrayType]]:
    """The numbers that get noise in a stage, and the arrays that leave."""
    part = part_of(settings, request.stage)
    if part == "generator":
        own = generator_of(settings).planned(request)
        return own.coordinates, own.array_types
    if part == "matching":
        of = matching_settings(settings)
        return settings.draws * draw_layout(of, run).coordinates, matching_planning.released_arrays(of, run)
    each = expert_layout(settings, run)
    shapes = {GRADIENT: (1, each.coordinates - len(run.classes)), COUNT: (len(run.classes), 1)}
    return settings.expert_steps * each.coordinates, {name: ArrayType("int64", shape) for name, shape in shapes.items()}


def _check(request: ReleaseRequest, settings: MethodSettings) -> None:
    """ConfigError unless the request is one that `run` can answer."""
    run = RunDescription.of(request)
    if run.kind is not DataKind.IMAGE:
        raise ConfigError("DP-GENG is for images")
    generator = generator_of(settings)
    if generator.count_weight <= 0.0:
        raise ConfigError(f"{generator.method.name} weighs no counts")
    if settings.matches:
        _check_matching(request, settings, run)
    if settings.fine_tunes:
        _check_expert(settings, run)
    part = part_of(settings, request.stage)
    wanted = input_forms(settings, run, part)
    given = {name: (str(array.dtype), array.shape) for name, array in request.stage_input.items()}
    if part == "generator" and request.stage:
        return  # its own plan looks at it
    if given != wanted:
        raise ConfigError(f"stage {request.stage} is asked with arrays {given}, and should be with {dict(wanted)}")


def _check_matching(request: ReleaseRequest, settings: MethodSettings, run: RunDescription) -> None:
    of = matching_settings(settings)
    check_shape(of, run)
    features = feature_count(run.shape, settings.width, settings.depth)
    if features > MOST_FEATURES:
        raise ConfigError(f"a network with {features} features is too wide; {MOST_FEATURES} is the most")
    if settings.dimensions > features:
        raise ConfigError(f"a network with {features} features has no subspace of {settings.dimensions} dimensions")
    matching_planning.check_size(request, of, features)


def _check_expert(settings: MethodSettings, run: RunDescription) -> None:
    if min(run.image_shape[1:]) >> settings.expert_depth < 1:
        raise ConfigError(f"an expert of depth {settings.expert_depth} is not for records of shape {run.shape}")
    length = parameter_count(settings, run.image_shape, len(run.classes))
    if BATCH * length > matching_planning.MOST_NUMBERS:
        raise ConfigError(
            f"gradients of {length} weights for {BATCH} records are more than the {matching_planning.MOST_NUMBERS} "
            "numbers that a silo holds at once; ask for a smaller expert_width"
        )
    fresh(settings, run.image_shape, len(run.classes), run.public_seed)  # which looks at its layers


def working_memory(settings: MethodSettings, run: RunDescription, stage: int) -> int:
    """Bytes: the part's own; of the expert a batch of gradients, in three forms, its activations, and two sums."""
    part = part_of(settings, stage)
    if part == "generator":
        generator = generator_of(settings)
        return generator.method.working_memory(generator.settings, run, stage)
    if part == "matching":
        kernels = sum(4 * int(np.prod(shape)) for _, shape in input_forms(settings, run, part).values())
        return matching_planning.working_memory(matching_settings(settings), run, 0) + 2 * kernels
    length = parameter_count(settings, run.image_shape, len(run.classes))
    activations = settings.expert_width * math.prod(run.shape[1:]) * 2
    return BATCH * (32 * length + 4 * 60 * activations) + 64 * length + (64 << 20)
