"""SPS, the private half: one streaming pass, one clipped sum, one Gaussian.

Event: one Gaussian over all statistics and counts of a stage.
Sensitivity: a record's vector (all rows of the statistics table, `dpdd.common.synthesis.summary`) is clipped to norm
√(1-a²), a record that sits in k groups counting k times, and its count coordinate is a: together norm 1. Adding or
removing a record changes the sums by exactly that contribution.
Public: class list, shape, backbone (by SHA-256), projections and groups (from the request's seed), clip and weights.
Private: everything else, counts included.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from dpdd.client.mechanisms import Plan, Progress, gaussian_plan, privatised_sum
from dpdd.client.records.records import Records
from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.privatise import Privatised
from dpdd.common.synthesis import sps
from dpdd.common.wire.request import ReleaseRequest


def plan(request: ReleaseRequest, settings: sps.MethodSettings) -> Plan:
    """One Gaussian release of the whole table."""
    return gaussian_plan(request, sps.summary_for(settings, request).layout)


def run(
    records: Records,
    request: ReleaseRequest,
    settings: sps.MethodSettings,
    plan: Plan,
    entropy: Entropy,
    progress: Progress,
) -> Privatised:
    """Sum the vectors of all records, and privatise the sum."""
    table = sps.summary_for(settings, request)

    def contributions(images: NDArray[np.float32]) -> NDArray[np.float32]:
        rows = np.empty((len(images), table.layout.width), dtype=np.float32)
        with torch.inference_mode():
            rows[:, :-1] = table.clipped(table.vectors(torch.from_numpy(images))).numpy()
        rows[:, -1] = settings.count_weight
        return rows

    return privatised_sum(records, table.layout, contributions, plan, entropy, progress)
