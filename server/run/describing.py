"""A run that describes columns: silos are asked for noisy histograms under a draft schema, and a schema is proposed.

It is a run like any other up to the sums over silos: a dry round, a request, signed releases, a card. Before anybody is
asked to spend it says how precise the counts will be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flwr.serverapp import Grid

from dpdd.common.cli import table
from dpdd.common.data.table.schema import TableSchema
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.column_histograms.description import TableDescription
from dpdd.common.methods.column_histograms.histogram import CERTAIN, histograms, record_count
from dpdd.common.methods.column_histograms.proposal import TAIL
from dpdd.common.methods.column_histograms.query import NAME
from dpdd.common.methods.request_plan import plan_of
from dpdd.common.synthesis.statistics import Statistics, noise_in
from dpdd.server.run.pipeline import Run
from dpdd.server.run.requests import RequestGroup, request_groups
from dpdd.server.run.scenario import Scenario


class DescribingRun(Run):
    """One run of a scenario whose `method` is `column-histograms`."""

    def execute(self, grid: Grid) -> dict[str, Any]:
        """Ask, aggregate, propose, write; returns what `metrics.json` holds."""
        self.scenario.privacy.check_silos(self.roster.keys)
        with self.store() as store:
            asked = request_groups(self.scenario, self.roster.keys)
            self.console.say(expected_errors(asked))
            self.rehearse(grid, [asked], store)
            stages = self.gather(grid, asked, store)
            (statistics,) = (stage.statistics for stage in stages)
            assert statistics is not None
            description = TableDescription.of(_draft(asked), statistics)
            figures = {**description.figures, "columns_toml": description.text}
            return self.finish(description, {"accuracy": {}}, stages, store, description=figures)


def run_class(scenario: Scenario) -> type[Run]:
    """What runs a scenario that is not continual."""
    return DescribingRun if scenario.method.name == NAME else Run


def expected_errors(asked: Sequence[RequestGroup]) -> str:
    """What the silos would be asked to spend, and how precise the counts of all of them together would be."""
    draft = _draft(asked)
    silos = sum(len(group.silos) for group in asked)
    noise = math.sqrt(math.fsum(len(group.silos) * noise_in(plan_of(group.request).event) ** 2 for group in asked))
    empty = Statistics(_no_sums(draft), noise, silos)
    found = histograms(draft, empty)
    seen = found[0].threshold * found[0].noise
    rows = [
        ["how often a value occurs, or how many are missing", f"± {_round_up(CERTAIN * found[0].noise)}"],
        ["how many records there are", f"± {_round_up(CERTAIN * record_count(found)[1])}"],
        ["the fewest records in one bin that are told from noise", _round_up(seen)],
        [f"the fewest of which {TAIL:.0%} at one end are told from noise", _round_up(seen / TAIL)],
    ]
    budgets = sorted({group.request.epsilon for group in asked})
    each = " or ".join("∞" if math.isinf(epsilon) else f"{epsilon:g}" for epsilon in budgets)
    delta = asked[0].request.delta
    what = f"{len(draft.columns)} columns at {silos} silo{'s' if silos > 1 else ''}, ε = {each} and δ = {delta:g} each"
    return f"before anybody spends on a description: {what}\n{table(['all silos together', 'records'], rows)}"


def _draft(asked: Sequence[RequestGroup]) -> TableSchema:
    draft = RunDescription.of(asked[0].request).table
    assert draft is not None  # a scenario with these histograms declares a table
    return draft


def _no_sums(draft: TableSchema) -> dict[str, Any]:
    import numpy as np

    from dpdd.common.methods.column_histograms.query import CELLS

    return {CELLS: np.zeros((1, sum(draft.sizes)))}


def _round_up(number: float) -> str:
    """Upwards to two digits.

    >>> _round_up(1234.5), _round_up(0.0), _round_up(7.01)
    ('1,300', '0', '7.1')
    """
    if number <= 0.0:
        return "0"
    step = 10.0 ** (math.floor(math.log10(number)) - 1)
    rounded = math.ceil(number / step - 1e-9) * step
    return f"{rounded:,.0f}" if rounded >= 10.0 else f"{rounded:.2g}"
