"""Private Evolution (Lin et al., ICLR 2024; Tab-PE for tables): the public half.

A population of synthetic records for every class. In each round every record votes for the member of its own class
that is nearest to it in a public embedding; released are the noisy votes, and a noisy count. The coordinator drops
votes that are no more than noise, keeps the members with the most, and has a generator make variations of others drawn
in proportion to their votes: the next round's population, which is public. All rounds are reserved together.

Where we differ from the paper: a record votes within its class, and class counts are released (with a coordinate of
their own in the same vector), not taken as public; the first population comes from the public seed and a generator that
needs no data, so that the first request carries nothing and silos need no generator; mates are mixed with their
parents; and votes for the mean of several variations ("lookahead") are not taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpdd.common.methods.base import Method, RunDescription
from dpdd.common.methods.plan import Plan, gaussian_plan
from dpdd.common.methods.private_evolution.settings import EvolutionSettings, SelectionSettings
from dpdd.common.privacy.clipping import Layout
from dpdd.common.wire.request import ReleaseRequest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dpdd.common.synthesis.labelled_set import LabelledSet
    from dpdd.common.synthesis.statistics import Statistics


class PrivateEvolution(Method[EvolutionSettings, SelectionSettings], family="private_evolution"):
    """Votes of private records on synthetic ones."""

    rounds = True

    def resolve(
        self, settings: EvolutionSettings, run: RunDescription, epsilon: float, delta: float
    ) -> EvolutionSettings:
        """Settings that say which generator, network and features are meant."""
        from dpdd.common.methods.private_evolution import specification

        return specification.resolve(settings, run)

    def backbones(self, settings: EvolutionSettings) -> tuple[str, ...]:
        """The network of the embedding, where it has one."""
        return (settings.backbone,) if settings.features and settings.backbone else ()

    def public_datasets(self, settings: EvolutionSettings) -> tuple[str, ...]:
        """The pool."""
        return (settings.pool,) if settings.pool else ()

    def public_models(self, settings: EvolutionSettings) -> tuple[str, ...]:
        """The diffusion model."""
        return (settings.model,) if settings.model else ()

    def stages(self, settings: EvolutionSettings) -> int:
        """A vote each."""
        return settings.rounds

    def layout(self, settings: EvolutionSettings, run: RunDescription, stage: int) -> Layout:
        """A vote per member, and a count per class."""
        from dpdd.common.methods.private_evolution import specification

        return specification.layout(settings, run)

    def plan(self, request: ReleaseRequest, settings: EvolutionSettings) -> Plan:
        """A Gaussian over votes and counts for every round, each with the same noise."""
        from dpdd.common.methods.private_evolution import specification

        specification.check_request(request, settings)
        sums = specification.layout(settings, RunDescription.of(request))
        return gaussian_plan(request, [sums] * settings.rounds)

    def check_round(self, request: ReleaseRequest, settings: EvolutionSettings) -> None:
        """The population has to be one."""
        from dpdd.common.methods.private_evolution import specification

        specification.check_input(request, settings)

    def count_weight(self, settings: EvolutionSettings, stage: int) -> float:
        """A coordinate of its own in the same vector."""
        from dpdd.common.methods.private_evolution import specification

        return specification.count_weight(settings)

    def working_memory(self, settings: EvolutionSettings, run: RunDescription, stage: int) -> int:
        """The members' vectors, and a batch of records beside them."""
        from dpdd.common.methods.private_evolution import specification

        return specification.working_memory(settings, run)

    def stage_input(
        self, statistics: Sequence[Statistics], settings: EvolutionSettings, run: RunDescription
    ) -> Mapping[str, NDArray]:
        """The population that the votes so far lead to."""
        from dpdd.common.methods.private_evolution import synthesis

        return synthesis.stage_input(statistics, settings, run)

    def advance(
        self, state: Any, statistics: Statistics, settings: EvolutionSettings, run: RunDescription
    ) -> tuple[Any, Mapping[str, NDArray]]:
        """One population more."""
        from dpdd.common.methods.private_evolution import synthesis

        return synthesis.advance(state, statistics, settings, run)

    def synthesise(
        self,
        statistics: Sequence[Statistics],
        settings: EvolutionSettings,
        synthesis: SelectionSettings,
        run: RunDescription,
    ) -> LabelledSet:
        """The members of the last population with the most votes; variations of them, where more are asked for."""
        from dpdd.common.methods.private_evolution import synthesis as evolution

        return evolution.generated(statistics, settings, run, synthesis)
