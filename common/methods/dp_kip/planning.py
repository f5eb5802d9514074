"""DP-KIP, planned: layout and cost of a step, what the next one is asked with, and the set at the end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.dp_kip import row_marginals
from dpdd.common.methods.dp_kip.descent import Descent, free_pixels, labels_of, size_of
from dpdd.common.methods.dp_kip.features import input_size, network_of
from dpdd.common.methods.dp_kip.following import GRADIENT, followed, step
from dpdd.common.methods.dp_kip.settings import GradientSettings, GradientSynthesisSettings
from dpdd.common.methods.dp_kip.table_inputs import decoded, support_shape
from dpdd.common.methods.plan import LEAST_NOISE, Plan, sums_of
from dpdd.common.privacy.accounting import Guarantee, calibrate, guarantee
from dpdd.common.privacy.clipping import Layout, global_segment
from dpdd.common.privacy.events import NonPrivate
from dpdd.common.privacy.privatise import noise_distance
from dpdd.common.privacy.sampling import sampled_event
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.statistics import Statistics
from dpdd.common.wire.request import ReleaseRequest

SUPPORT = "support"
"""What later stages are asked with."""
BATCH = 32
"""Records at a time, in a silo, where their gradients are factors."""
DENSE_BATCH = {"fc-ntk": 32, "scattering": 1}
"""Records at a time where gradients are made: through features each takes as long as all support images forward."""
MOST_NUMBERS = 1 << 26
"""What a batch of gradients may have."""


def layout(settings: GradientSettings, run: RunDescription) -> Layout:
    """One segment over all records; ConfigError for a support set that is too large to have gradients of."""
    images = settings.support_per_class * len(run.classes)
    in_features = settings.clip_in == "features"
    size = images * input_size(settings, run) if in_features else size_of(settings, run)
    if BATCH * size > MOST_NUMBERS:
        raise ConfigError(
            f"a support set of {size} {settings.clip_in} is too large; {MOST_NUMBERS // BATCH} is the most"
        )
    width = size if in_features else int(free_pixels(settings, run).sum())
    gradient = global_segment(GRADIENT, width, len(run.classes))
    if not settings.marginals:
        return Layout((gradient,))
    beside = row_marginals.segment(settings, run)
    norm = row_marginals.gradient_norm(settings)
    return Layout((replace(gradient, factors=(images, width // images), norm=norm), beside))


def plan(request: ReleaseRequest, settings: GradientSettings) -> Plan:
    """The cost of one step, and that of all; ConfigError for a request that no silo could answer."""
    run = RunDescription.of(request)
    sums = layout(settings, run)
    check_input(request, settings, run)
    released = sums_of(sums)
    if math.isinf(request.epsilon):
        return Plan(NonPrivate(), Guarantee(math.inf, request.delta, "none"), 0.0, sums.coordinates, released)
    sigma, accountant = _noise(request, settings, sums)
    event, whole = (sampled_event(sigma, settings.rate, steps) for steps in (1, settings.steps))
    promised, distance = Guarantee(request.epsilon, request.delta, accountant), noise_distance(event, sums)
    return Plan(event, promised, distance, sums.coordinates, released, whole, settings.steps * distance)


def _noise(request: ReleaseRequest, settings: GradientSettings, sums: Layout) -> tuple[float, str]:
    """σ of a step, in units of the sensitivity, and the accountant; the sampler's distance to ideal noise is off δ."""
    epsilon, delta, of = request.epsilon, request.delta, (settings.rate, settings.steps)

    def slack(sigma: float) -> float:
        return (1.0 + math.exp(epsilon)) * settings.steps * noise_distance(sampled_event(sigma, *of), sums)

    sigma = _calibrated(epsilon, delta, *of)
    if slack(sigma) >= delta:
        raise ValueError(
            f"at epsilon {epsilon:g} the distance of so much noise to ideal noise costs {slack(sigma):.2g}, which is "
            f"more than delta, {delta:g}; ask for fewer steps, a smaller epsilon or a larger delta"
        )
    promised = _guaranteed(sigma, delta - slack(sigma), *of)
    if promised.epsilon > epsilon:  # most often the slack is so little that it is not
        sigma = _calibrated(epsilon, delta - slack(sigma), *of)
    return sigma, promised.accountant


@lru_cache(maxsize=32)
def _calibrated(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """The same for all stages of a run, and costly to find."""
    found = calibrate(lambda sigma: sampled_event(max(sigma, LEAST_NOISE), rate, steps), epsilon, delta)
    return max(found, LEAST_NOISE)


@lru_cache(maxsize=32)
def _guaranteed(sigma: float, delta: float, rate: float, steps: int) -> Guarantee:
    return guarantee(sampled_event(sigma, rate, steps), delta)


def check_input(request: ReleaseRequest, settings: GradientSettings, run: RunDescription) -> None:
    """ConfigError unless the stage input is a support set, and there is one from the second stage on."""
    shape = (settings.support_per_class * len(run.classes), *support_shape(run))
    expected = {SUPPORT: shape} if request.stage else {}
    given = {name: array.shape for name, array in request.stage_input.items()}
    fine = all(
        array.dtype == np.float32 and bool(((array >= 0.0) & (array <= 1.0)).all())
        for array in request.stage_input.values()
    )
    if given != expected or not fine:
        raise ConfigError(f"the request has the stage input {given}, and should have pixels in [0, 1] {expected}")


def stage_input(
    statistics: Sequence[Statistics], settings: GradientSettings, run: RunDescription
) -> dict[str, NDArray[np.float32]]:
    """The support set after as many steps as there are statistics."""
    return {SUPPORT: followed(statistics, settings, run)[-1]}


def advance(
    state: Descent | None, statistics: Statistics, settings: GradientSettings, run: RunDescription
) -> tuple[Descent, dict[str, NDArray[np.float32]]]:
    """One step more; the same as following all of them from the start."""
    after = step(state or Descent.begin(settings, run), statistics)
    return after, {SUPPORT: after.support}


def synthesise(
    statistics: Sequence[Statistics],
    settings: GradientSettings,
    synthesis: GradientSynthesisSettings,
    run: RunDescription,
) -> LabelledSet:
    """The mean of the last support sets, as images, or as rows of codes."""
    supports = followed(statistics, settings, run)[-synthesis.average_last :]
    total = np.mean([support.astype(np.float64) for support in supports], axis=0)
    labels = labels_of(settings, run)
    kept = np.arange(len(labels)) % settings.support_per_class < run.images_per_class
    if settings.marginals:
        sums = np.sum([each.sums[row_marginals.MARGINALS] / each.silos for each in statistics], axis=0)
        noise = math.sqrt(math.fsum((each.noise / each.silos) ** 2 for each in statistics))
        rows = row_marginals.decoded(run, settings, total, sums, noise)
        return LabelledSet(rows, labels[kept], run.classes, schema=run.table)
    if run.table is not None:
        return LabelledSet(
            decoded(run, settings, total[kept], labels[kept]), labels[kept], run.classes, schema=run.table
        )
    return LabelledSet(np.rint(255.0 * total[kept]).astype(np.uint8), labels[kept], run.classes)


def working_memory(settings: GradientSettings, run: RunDescription) -> int:
    """Bytes: gradients of a batch and what they are made of, the set's own, and features on their way."""
    images, inputs = settings.support_per_class * len(run.classes), input_size(settings, run)
    batch = BATCH if settings.factored else DENSE_BATCH[settings.kernel]
    numbers = 8 * BATCH * (images**2 + inputs) + 12 * images**2 + 8 * images * inputs
    numbers += 4 * batch * size_of(settings, run) if not settings.factored else 0
    network = network_of(settings, run)
    looked_at = 0 if network is None else network.working_memory(run.shape, 4 * images + BATCH)
    return 8 * numbers + looked_at
