"""SPS for tables, the private half: one streaming pass, one clipped sum and one Gaussian.

Event: one Gaussian over all marginals and counts.
Sensitivity: a record of class y, one-hot h with a 1 for each of its d codes, adds w·h and its count a to the rows of
its class, of norm √(w²d + a²), and the outer product of (h at class y) with h, both clipped to norm 1, times √(1 -
w²d - a²). The norm of an outer product is the product of the norms, so that all squares add up to 1 at most, which
`ClippedSum` enforces in integers. Adding or removing a record changes the sums by exactly that. A row with anything
in it that is no code of its column (NaN, a fraction, a number out of range) adds nothing, its count included.
Public: the schema (columns, categories, bins, bounds), classes, and all settings. Private: everything else, the class
counts and the number of records included.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpdd.client.mechanisms.base import Contribution, Mechanism, privatised_sum
from dpdd.client.records.records import Records
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.plan import Plan
from dpdd.common.methods.sps_table.marginals import PAIRS, marginals
from dpdd.common.methods.sps_table.settings import MethodSettings
from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.privatise import Privatised
from dpdd.common.progress import Progress
from dpdd.common.wire.request import ReleaseRequest


class SPSTableMechanism(Mechanism[MethodSettings]):
    """Sums of one-hot rows and of their outer products, by class."""

    def run(
        self,
        records: Records,
        request: ReleaseRequest,
        settings: MethodSettings,
        plan: Plan,
        entropy: Entropy,
        progress: Progress,
    ) -> Privatised:
        """Sum up the one-hot rows of all records, and privatise the sum."""
        released = marginals(settings, RunDescription.of(request))

        def contributions(rows: NDArray[np.float32], labels: NDArray[np.int64]) -> Contribution:
            hot = released.one_hot(rows)
            counts = np.full((len(rows), 1), settings.count_weight, np.float32)
            columns = np.concatenate([np.float32(released.column_weight) * hot, counts], axis=1)
            if not released.has_pairs:
                return columns, {}
            groups = released.one_hot_groups(rows)
            of_class = np.zeros((len(rows), released.classes, released.group_width), np.float32)
            of_class[np.arange(len(rows)), labels] = groups
            return columns, {PAIRS: (of_class.reshape(len(rows), -1), groups)}

        return privatised_sum(records, released.layout, contributions, plan, entropy, progress)


MECHANISM = SPSTableMechanism()
