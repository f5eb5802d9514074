"""DP-CDA, centralised against decentralised: `dpdd-sim reproduce cda --silos 5 --mode both`.

A mixture is a sum. So K silos can each ship T mixtures of l records, K·T records in all; or the coordinator adds their
mixtures up, T records of order K·l, whose mean has √K times less noise for the same budget. Equal orders are compared
(each silo then gives l / K, at a lower sampling rate, and so with less noise in its sum), and equal numbers of records
(K·T mixtures from each silo share its budget).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from dpdd.common.cli import table
from dpdd.scenarios.papers.base import Cell, Outcomes, spread


@dataclass(frozen=True)
class Row:
    """A mode, the records of a silo that are in a mixture on average, and mixtures of each class from a silo."""

    mode: str
    given: float
    mixtures: int

    def order(self, silos: int) -> float:
        """Records in a mixture, of all silos that share it."""
        return self.given * (silos if self.mode == "centralised" else 1)

    def records(self, silos: int) -> int:
        """Records of each class in the end."""
        return self.mixtures * (1 if self.mode == "centralised" else silos)


def rows(order: int, options: argparse.Namespace) -> list[Row]:
    """What is compared with `order` records of a mixture in decentralised mode."""
    silos, few = options.silos, options.mixtures
    many = few * silos
    return [
        Row("decentralised", order, few),
        Row("decentralised", order, max(few // silos, 1)),
        Row("centralised", order / silos, many),
        Row("centralised", order / silos, few),
        Row("centralised", order, many),
        Row("centralised", order, few),
    ]


def cells(options: argparse.Namespace) -> list[Cell]:
    """All rows, for every ε and order."""
    return [
        Cell(
            _key(row, order, epsilon),
            f"{row.mode}, order {row.order(options.silos):g}, {row.records(options.silos)} records, ε = {epsilon:g}",
            scenario_text(row.given, epsilon, options, row.mode, row.mixtures),
        )
        for epsilon in options.epsilon
        for order in options.orders
        for row in rows(order, options)
    ]


def report(options: argparse.Namespace, outcomes: Outcomes) -> Iterator[str]:
    """The rows, and which mode has the best one at each number of records."""
    yield (
        f"DP-CDA on {options.dataset}, {options.silos} silos, δ = 1e-5 for each, {options.seeds} seed(s); "
        f"test accuracy of the learner {options.judge} in %"
    )
    for epsilon in options.epsilon:
        for order in options.orders:
            yield ""
            yield f"ε = {epsilon:g}, mixtures of {order} records in decentralised mode"
            compared = rows(order, options)
            runs = {
                row: [each.accuracy.get(options.judge) for each in outcomes[_key(row, order, epsilon)]]
                for row in compared
            }
            lines = [
                [row.mode, f"{row.order(options.silos):g}", str(row.records(options.silos)), spread(runs[row])]
                for row in compared
            ]
            yield table(["mode", "order", "records of a class", "% right"], lines)
            for records in sorted({row.records(options.silos) for row in compared}):
                alike = [row for row in compared if row.records(options.silos) == records]
                best = max(alike, key=lambda row: sum(value or 0.0 for value in runs[row]))
                yield f"with {records} records of a class {best.mode} of order {best.order(options.silos):g} is best"


def _key(row: Row, order: int, epsilon: float) -> str:
    return f"{row.mode}-{order}-{row.given:g}-{row.mixtures}-{epsilon:g}"


def scenario_text(
    order: float, epsilon: float, options: argparse.Namespace, mode: str, mixtures: int, synthesis: str = ""
) -> str:
    """A run with mixtures of so many records of each silo, and so many of them from each."""
    return f"""\
name = "reproduce-cda-{order:g}"
seed = {{seed}}
[data]
dataset = "{options.dataset}"
silos = {options.silos}
[privacy]
epsilon = {epsilon!r}
delta = 1e-5
[method]
name = "dp-cda"
mode = "{mode}"
[method.settings]
order = {order}
class_size = {options.class_size}
mixtures_per_class = {mixtures}
[synthesis]
images_per_class = {mixtures}
[synthesis.settings]
{synthesis}
[evaluation]
learners = ["{options.judge}"]
labels = "hard"
runs = 1
width = {options.width}
steps = {options.steps}
"""
