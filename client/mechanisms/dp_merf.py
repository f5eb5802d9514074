"""DP-MERF, the private half: per-class sums of random Fourier features.

Event: one Gaussian over the whole vector of class sums and counts.
Sensitivity: a record adds (√(1-a²)·φ(x), a) to the row of its class, where ‖φ(x)‖ = 1 and a is the count weight, so its
contribution has norm 1; the clip enforces that for whatever the floats did. Adding or removing a record changes the sum
by that contribution: L2 sensitivity 1, which is 2^20 grid steps.
Public: class list, shape, frequencies (from the request's seed), kernel width. Private: everything else, the class
counts and the number of records included.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from dpdd.client.mechanisms.base import Contribution, Plan, Progress, gaussian_plan, privatised_sum
from dpdd.client.records.records import Records
from dpdd.common.methods.dp_merf import synthesis as dp_merf
from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.privatise import Privatised
from dpdd.common.wire.request import ReleaseRequest


def plan(request: ReleaseRequest, settings: dp_merf.MethodSettings) -> Plan:
    """One Gaussian release of all class sums."""
    return gaussian_plan(request, [dp_merf.layout(settings, len(request.classes))])


def run(
    records: Records,
    request: ReleaseRequest,
    settings: dp_merf.MethodSettings,
    plan: Plan,
    entropy: Entropy,
    progress: Progress,
) -> Privatised:
    """Sum the features of all records, and privatise the sum."""
    omega = dp_merf.frequencies(settings, math.prod(request.shape), request.public_seed)
    layout = dp_merf.layout(settings, len(request.classes))

    def contributions(images: NDArray[np.float32], _labels: NDArray[np.int64]) -> Contribution:
        rows = np.empty((len(images), layout.width), dtype=np.float32)
        with torch.inference_mode():
            rows[:, :-1] = dp_merf.embed(torch.from_numpy(images), omega).numpy()
        rows[:, :-1] *= math.sqrt(1.0 - settings.count_weight**2)
        rows[:, -1] = settings.count_weight
        return rows, {}

    return privatised_sum(records, layout, contributions, plan, entropy, progress)
