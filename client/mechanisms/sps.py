"""SPS, the private half: one streaming pass, one clipped sum and one Gaussian for each stage.

Event: one Gaussian over all statistics and counts of a stage; all stages are reserved together.
Sensitivity: a record adds a count (norm a), the rows of the statistics spec (`feature_statistics`; clipped
to norm r, a record that sits in k groups counting k times), and either its embedding p to its class's sum together with
p ⊗ p, or, in later stages, residual ⊗ p; the norm of an outer product is the product of the norms. The squares of all
these add up to at most 1, which `ClippedSum` enforces in integers. Adding or removing a record changes the sums by
exactly that contribution.
Public: class list, shape, backbone (by SHA-256), projections and groups (from the request's seed), clip and weights,
and what later stages centre on, which is computed from earlier releases.
Private: everything else, counts included.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from dpdd.client.mechanisms.base import Contribution, Plan, Progress, gaussian_plan, privatised_sum
from dpdd.client.records.records import Records
from dpdd.common.errors import ConfigError
from dpdd.common.methods.sps import feature_statistics
from dpdd.common.methods.sps import synthesis as sps
from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.privatise import Privatised
from dpdd.common.synthesis import teacher
from dpdd.common.wire.request import ReleaseRequest


def plan(request: ReleaseRequest, settings: sps.MethodSettings) -> Plan:
    """One Gaussian release of the whole spec, for each stage."""
    if request.stage >= settings.stages:
        raise ConfigError(f"the run has {settings.stages} stages, and this is a request for stage {request.stage + 1}")
    spec = sps.statistics_for(settings, request)
    expected = sps.stage_input_shapes(spec) if request.stage else {}
    found = {name: array.shape for name, array in request.stage_input.items()}
    if found != expected or not all(np.isfinite(array).all() for array in _single(request).values()):
        raise ConfigError(f"the request centres on {found}, and should on finite arrays {expected}")
    layouts = [sps.layout(settings, len(request.classes), stage) for stage in range(settings.stages)]
    return gaussian_plan(request, layouts, settings.first_share)


def _single(request: ReleaseRequest) -> dict[str, NDArray[np.float32]]:
    """The centre in single precision, in which it is used; numbers too large for that become infinite."""
    with np.errstate(over="ignore"):
        return {name: np.array(array, dtype=np.float32) for name, array in request.stage_input.items()}


def run(
    records: Records,
    request: ReleaseRequest,
    settings: sps.MethodSettings,
    plan: Plan,
    entropy: Entropy,
    progress: Progress,
) -> Privatised:
    """Sum the contributions of all records, and privatise the sum."""
    spec = sps.statistics_for(settings, request)
    given = {name: torch.from_numpy(array) for name, array in _single(request).items()}
    by_class = None
    if "rows" in given:
        scale = [torch.full((statistic.width,), spec.weights[statistic.name]) for statistic in spec.statistics]
        by_class = given["rows"] * torch.cat(scale)

    def contributions(images: NDArray[np.float32], labels: NDArray[np.int64]) -> Contribution:
        with torch.inference_mode():
            classes = torch.from_numpy(labels)
            rows, embedding = spec.measure(torch.from_numpy(images), None if by_class is None else by_class[classes])
            parts, factors = [rows.numpy()], {}
            if embedding is not None and request.stage == 0:
                factors[feature_statistics.SECOND_MOMENT] = (embedding.numpy(),) * 2
                parts.append(embedding.numpy() * np.float32(spec.weights[feature_statistics.CLASS_SUMS]))
            elif embedding is not None:
                wrong = teacher.residuals(embedding, classes, given["teacher"])
                factors[feature_statistics.RESIDUAL] = (wrong.numpy(), embedding.numpy())
        parts.append(np.full((len(images), 1), settings.count_weight, dtype=np.float32))
        return np.concatenate(parts, axis=1), factors

    return privatised_sum(records, spec.layout, contributions, plan, entropy, progress)
