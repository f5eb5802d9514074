"""DP-MERF, the private half: per-class sums of random Fourier features.

Event: one Gaussian over the whole vector of class sums and counts.
Sensitivity: a record adds (√(1-a²)·φ(x), a) to the row of its class, where ‖φ(x)‖ = 1 and a is the count weight, so its
contribution has norm 1; the clip enforces that for whatever the floats did. Adding or removing a record changes the sum
by that contribution: L2 sensitivity 1, which is 2^20 grid steps.
Public: class list, shape, a table's schema, frequencies (from the request's seed), kernel width. Private: everything
else, the class counts and the number of records included.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from dpdd.client.mechanisms.base import Contribution, Mechanism, privatised_sum
from dpdd.client.records.records import Records
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.dp_merf.settings import MethodSettings
from dpdd.common.methods.dp_merf.specification import embed_records, frequencies, layout
from dpdd.common.methods.plan import Plan
from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.privatise import Privatised
from dpdd.common.progress import Progress
from dpdd.common.wire.request import ReleaseRequest


class DPMERFMechanism(Mechanism[MethodSettings]):
    """Class sums of random Fourier features."""

    def run(
        self,
        records: Records,
        request: ReleaseRequest,
        settings: MethodSettings,
        plan: Plan,
        entropy: Entropy,
        progress: Progress,
    ) -> Privatised:
        """Sum the features of all records, and privatise the sum."""
        run = RunDescription.of(request)
        omega, sums = frequencies(settings, run), layout(settings, run)

        def contributions(features: NDArray[np.float32], _labels: NDArray[np.int64]) -> Contribution:
            rows = np.empty((len(features), sums.width), dtype=np.float32)
            with torch.inference_mode():
                rows[:, :-1] = embed_records(torch.from_numpy(features), omega, run).numpy()
            rows[:, :-1] *= math.sqrt(1.0 - settings.count_weight**2)
            rows[:, -1] = settings.count_weight
            return rows, {}

        return privatised_sum(records, sums, contributions, plan, entropy, progress)


MECHANISM = DPMERFMechanism()
