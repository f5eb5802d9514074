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

from dpdd.client.mechanisms import Plan, Progress, gaussian_plan
from dpdd.client.records.records import Records
from dpdd.common.privacy.clipping import ClippedSum
from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.events import Gaussian, NonPrivate
from dpdd.common.privacy.privatise import Privatised, privatise
from dpdd.common.synthesis import dp_merf
from dpdd.common.wire.request import ReleaseRequest

BATCH = 256


def plan(request: ReleaseRequest, settings: dp_merf.MethodSettings) -> Plan:
    """One Gaussian release of all class sums."""
    return gaussian_plan(request, dp_merf.layout(settings, len(request.classes)))


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
    total = ClippedSum(dp_merf.layout(settings, len(request.classes)))
    weight = settings.count_weight
    done = 0
    for features, labels in records.batches(BATCH):
        # Always the same batch shape: a record's features must not depend, even in their last bit, on its neighbours.
        padded = np.zeros((BATCH, *features.shape[1:]), dtype=np.float32)
        padded[: len(features)] = features
        with torch.inference_mode():
            embedded = dp_merf.embed(torch.from_numpy(padded), omega)[: len(features)].numpy()
        rows = np.empty((len(features), embedded.shape[1] + 1))
        rows[:, :-1] = embedded * math.sqrt(1.0 - weight**2)
        rows[:, -1] = weight
        total.add(rows, labels)
        done += len(features)
        progress("summing features", done, len(records))
    progress("adding noise", 0, 1)
    assert isinstance(plan.event, Gaussian | NonPrivate)
    return privatise(total, plan.event, entropy)
