"""DP-GENG, the private half: a generator's sums, mean features over Poisson samples, and DP-SGD for an expert.

Three parts, each with stages of its own, all reserved together:

- *generator*: the private half of another method (DP-MERF, Private Evolution, SPS), as it is, under the noise planned
  here: one Gaussian for each of its stages, whose sensitivity is argued there.
- *matching*: for each draw one Gaussian over all classes' sums of clipped features and counts, on a fresh Poisson
  sample (`dpdd.client.mechanisms.matching`); the networks are those in the request.
- *expert*: DP-SGD. For each step one Gaussian over the sum of clipped gradients and class counts, on a fresh Poisson
  sample. A sampled record adds (√(1-a²)·g/c, a), with ‖g/c‖ at most 1, to the one row of gradients and to the count of
  its class: norm 1, which `ClippedSum` enforces in integers; `SampledSum` lets nobody in who was not sampled. A record
  with a gradient that is not finite adds nothing.

Events: Gaussian for the generator; PoissonGaussian for matching and for the expert.
Composition: every σ, every rate and the numbers of draws and steps are fixed by the request, whatever extractors or
weights it brings, and whatever the noisy sums so far were. So each step has the same dominating pair of privacy losses
however its network was chosen, and all of them compose adaptively: a step of the expert depends on records only through
the noisy sums before it, which are all that is kept. What leaves is their weighted sum: post-processing.
Public: class list, shape, extractors, first weights and the size of a silo that sums are divided by (all in the
request, and computed from noisy sums), clip norm, rates. Private: everything else: who was sampled, how many, counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

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
)
from dpdd.client.mechanisms.matching import released_draws
from dpdd.client.records.records import Records
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.dp_geng.expert import fresh, set_vector
from dpdd.common.methods.dp_geng.gradients import RecordGradients
from dpdd.common.methods.dp_geng.planning import BATCH
from dpdd.common.methods.dp_geng.settings import COUNT, EXPERT, GRADIENT, SIZE, MethodSettings
from dpdd.common.methods.dp_geng.specification import (
    expert_layout,
    generator_of,
    matching_settings,
    part_of,
    schedule,
    signals,
    step_length,
)
from dpdd.common.methods.plan import Plan
from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.events import Gaussian, NonPrivate, PoissonGaussian
from dpdd.common.privacy.privatise import Privatised, combine, in_units, numbered, privatise
from dpdd.common.privacy.sampling import SampledSum, sampled_event
from dpdd.common.progress import Progress
from dpdd.common.wire.request import ReleaseRequest


class DPGENGMechanism(Mechanism[MethodSettings]):
    """A generator's sums, mean features, and the gradients of an expert."""

    def run(
        self,
        records: Records,
        request: ReleaseRequest,
        settings: MethodSettings,
        plan: Plan,
        entropy: Entropy,
        progress: Progress,
    ) -> Privatised:
        """The part that the stage belongs to."""
        described = RunDescription.of(request)
        match part_of(settings, request.stage):
            case "generator":
                generator = generator_of(settings)
                half = mechanism(generator.method)
                return half.run(records, generator.asked(request), generator.settings, plan, entropy, progress)
            case "matching":
                draws = signals(settings, request.stage_input, described)
                return released_draws(records, request, matching_settings(settings), draws, plan, entropy, progress)
            case "expert":
                return _fine_tuned(records, request, settings, plan, entropy, progress)


def _fine_tuned(
    records: Records,
    request: ReleaseRequest,
    settings: MethodSettings,
    plan: Plan,
    entropy: Entropy,
    progress: Progress,
) -> Privatised:
    """DP-SGD from the weights in the request on: sample, sum, privatise, take the step, and so on."""
    run = RunDescription.of(request)
    layout = expert_layout(settings, run)
    gradients = RecordGradients(fresh(settings, run.image_shape, len(run.classes), run.public_seed))
    weights = request.stage_input[EXPERT].astype(np.float64)
    size = float(request.stage_input[SIZE][0])
    length = step_length(settings, size if math.isfinite(size) else 1.0)
    assert isinstance(plan.event, Gaussian | PoissonGaussian | NonPrivate)
    event = plan.event
    if not isinstance(event, NonPrivate):
        event = sampled_event(event.sigma, settings.expert_rate, 1)
    contributions = _contributions(gradients, settings)
    set_vector(gradients.network, weights)
    independent = independent_of_batch_position(contributions, (BATCH, *request.shape), len(request.classes))
    counted = schedule(settings.expert_steps)
    so_far: Privatised | None = None
    for step, share in enumerate(counted):
        set_vector(gradients.network, weights)
        total = SampledSum(layout, settings.expert_rate, len(records), entropy)
        add_sample(total, records, contributions, BATCH if independent else 1)
        noisy = privatise(total, event, entropy)
        weights = weights - length * share * in_units(noisy.arrays[GRADIENT])[0]
        so_far = _added(so_far, noisy, share)
        progress("DP-SGD of the expert", step + 1, settings.expert_steps)
    assert so_far is not None
    steps, norm = settings.expert_steps, float(np.linalg.norm(counted))
    return so_far.post_process(
        lambda arrays: {
            GRADIENT: np.rint(arrays[GRADIENT] / norm).astype(np.int64),
            COUNT: np.rint(arrays[COUNT] / math.sqrt(steps)).astype(np.int64),
        }
    )


def _added(so_far: Privatised | None, noisy: Privatised, share: float) -> Privatised:
    """The noisy sums of one more step, weighted: gradients by the step's share of the learning rate, counts by 1."""

    def weighted(arrays: Mapping[str, NDArray]) -> Mapping[str, NDArray]:
        return {GRADIENT: share * arrays[GRADIENT], COUNT: arrays[COUNT].astype(np.float64)}

    if so_far is None:
        return noisy.post_process(weighted)
    both = combine(numbered(so_far, 0), numbered(noisy.post_process(weighted), 1))
    return both.post_process(
        lambda arrays: {name: arrays[f"0 {name}"] + arrays[f"1 {name}"] for name in (GRADIENT, COUNT)}
    )


def _contributions(gradients: RecordGradients, settings: MethodSettings) -> Contributions:
    """(√(1-a²)·g/c, a) of every record at the network's present weights, with g/c of norm at most 1."""
    weight = settings.count_share

    def contributions(images: NDArray[np.float32], labels: NDArray[np.int64]) -> Contribution:
        each = gradients.of(torch.from_numpy(images), torch.from_numpy(labels)).numpy()
        rows = np.empty((len(images), each.shape[1] + 1), dtype=np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite adds nothing
            norms = np.sqrt(np.einsum("ij,ij->i", each, each, dtype=np.float64)) / settings.expert_clip
            scale = math.sqrt(1.0 - weight**2) / settings.expert_clip / np.maximum(norms, 1.0)
            rows[:, :-1] = each * scale[:, None]
        rows[:, -1] = weight
        return rows, {}

    return contributions


MECHANISM = DPGENGMechanism()
