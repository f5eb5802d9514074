"""DP-CDA (Saha, Tonoy and Imtiaz 2025): the public half. Every synthetic record is a noisy mixture of one class.

Released, for every class: the sums of `mixtures_per_class` Poisson samples of its records, with noise, and a noisy
count. A record adds to the mixtures of its own class only, so all classes are released together at the cost of one:
disjoint records compose in parallel. The label of a mixture is known by construction, and needs no noise.

Where we differ from the paper: records are scaled by public numbers, not by their own means and deviations; samples
are Poisson samples at a public rate, not a fixed number out of a class whose size is private; and the accounting is
that of these samples, by privacy loss distributions. What the paper's Theorem 1 says of the same noise stands beside
it in the card (`published`). As mixtures are sums, silos' mixtures can be added up, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpdd.common.methods.base import Method, RunDescription
from dpdd.common.methods.dp_cda.settings import MixingSettings, MixtureSynthesisSettings
from dpdd.common.methods.plan import Plan
from dpdd.common.privacy.clipping import Layout
from dpdd.common.wire.request import ReleaseRequest

if TYPE_CHECKING:
    from dpdd.common.synthesis.labelled_set import LabelledSet
    from dpdd.common.synthesis.statistics import Statistics


class DPCDA(Method[MixingSettings, MixtureSynthesisSettings], family="dp_cda"):
    """Noisy mixtures of records of one class."""

    def layout(self, settings: MixingSettings, run: RunDescription, stage: int) -> Layout:
        """A row for every mixture, the classes of each one after another, and a count per class."""
        from dpdd.common.methods.dp_cda import specification

        return specification.layout(settings, run)

    def plan(self, request: ReleaseRequest, settings: MixingSettings) -> Plan:
        """A Gaussian on a Poisson sample for every mixture; all classes at once."""
        from dpdd.common.methods.dp_cda import specification

        return specification.plan(request, settings)

    def count_weight(self, settings: MixingSettings, stage: int) -> float:
        """Every mixture has counts of its own; they are added up."""
        from dpdd.common.methods.dp_cda import specification

        return specification.count_weight(settings)

    def working_memory(self, settings: MixingSettings, run: RunDescription, stage: int) -> int:
        """A batch of records, and the sums of all mixtures while they are put together."""
        from dpdd.common.methods.dp_cda import specification

        return specification.working_memory(settings, run)

    def published_epsilon(self, settings: MixingSettings, run: RunDescription, plan: Plan) -> float | None:
        """By Theorem 1, whose sensitivity and sampling rate are others."""
        from dpdd.common.methods.dp_cda import published

        return published.epsilon_of(settings, run, plan)

    def synthesise(
        self,
        statistics: Sequence[Statistics],
        settings: MixingSettings,
        synthesis: MixtureSynthesisSettings,
        run: RunDescription,
    ) -> LabelledSet:
        """A record per mixture; at most `mixtures_per_class` of every class, however many are asked for."""
        from dpdd.common.methods.dp_cda import synthesis as dp_cda

        return dp_cda.synthesise(statistics[0], settings, synthesis, run)
