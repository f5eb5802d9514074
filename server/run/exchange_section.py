"""`[exchange]` of a scenario: whom a run waits for, and how long."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from dpdd.common.config import Settings

ROUND_MINUTES = 5.0
"""What a round waits for silos that drop out, unless the scenario says otherwise."""


class ExchangeSection(Settings):
    """Real silos over the network: how long to wait for their answers, and how many releases there must be by then.

    All enrolled silos are asked. A run goes on when all have answered, or at the deadline with at least `quorum`
    releases; it says who is missing.

    `dropouts` is for later stages, and says what is done about a silo that answered the first one and drops out.
    `wait`: nothing goes on without it; at the deadline the run stops, and can be resumed. `skip`, for methods whose
    stages are rounds: a round goes on without those who have not answered after `round_minutes` (five, unless given),
    and a silo that comes back takes part from the round where the others are. Left out, rounds wait; other methods go
    on without it at the deadline.

    Before that, a dry round asks them what they would do. Silos that say nothing are waited for until the quorum is
    sure and `rehearsal_minutes` have passed (by default two, or a quarter of the deadline where that is less).
    """

    quorum: Annotated[int, Field(ge=1)] = 1
    deadline_minutes: Annotated[float, Field(gt=0.0, le=525_600.0)] = 1440.0
    dropouts: Literal["wait", "skip"] | None = None
    round_minutes: Annotated[float, Field(gt=0.0, le=525_600.0)] | None = None
    rehearsal_minutes: Annotated[float, Field(ge=0.0, le=525_600.0)] | None = None

    @model_validator(mode="after")
    def _limit_for_skipping(self) -> ExchangeSection:
        if self.round_minutes is not None and self.dropouts != "skip":
            raise ValueError(
                'exchange.round_minutes is the time limit of exchange.dropouts = "skip": give both, or none'
            )
        return self
