"""A synthetic table beside public test rows: a picture of both, and how far apart they are in figures.

>>> facts = {"rows": 1000, "real_rows": 500, "one_way": 0.0124, "two_way": 0.043, "three_way": 0.0956, "pairs": 1,
...          "triples": 0, "columns": {"age": 0.0148, "sex": 0.01}, "correlation_difference": 0.031, "coverage": 0.995}
>>> print(distances_table(facts))
distance to 500 test rows             mean  largest
----------------------------------  ------  -----------
a column's marginal (TV)            0.0124  age: 0.0148
pairs of columns (TV)               0.0430
triples of columns (TV)             0.0956
correlation of pairs (Cramér's V)   0.0310
values of test rows that are there  99.5 %
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpdd.common.cli import table
from dpdd.common.data.table.rows import codes_of
from dpdd.common.synthesis.labelled_set import LabelledSet

if TYPE_CHECKING:
    from dpdd.common.synthesis.product import Product
    from dpdd.server.run.scenario import Scenario

MARGINALS = "marginals.png"


def compare_table(product: Product, scenario: Scenario, folder: Path) -> dict[str, Any]:
    """Write the picture of a table's marginals into `folder`; what `metrics.json` says of distances to test rows.

    Test rows are read where the run evaluates, and there are any; without them the picture shows the synthetic rows
    alone. Nothing is done for images and models.
    """
    from dpdd.server.evaluation.fidelity import fidelity
    from dpdd.server.report.marginals_picture import picture

    if not isinstance(product, LabelledSet) or product.schema is None or len(product) == 0:
        return {}
    schema, test = product.schema, scenario.test_rows() if scenario.evaluation.runs else None
    synthetic = codes_of(schema, product.rows, product.labels)
    real = None if test is None else codes_of(schema, test.rows, test.labels)
    picture(schema, synthetic, real, scenario.name).save(folder / MARGINALS, optimize=True)
    return {} if real is None else {"fidelity": fidelity(schema, synthetic, real)}


def distances_table(facts: Mapping[str, Any]) -> str:
    """What `fidelity` found, for people."""
    furthest = max(facts["columns"], key=lambda name: float(facts["columns"][name]))
    rows = [
        ["a column's marginal (TV)", _figure(facts["one_way"]), f"{furthest}: {_figure(facts['columns'][furthest])}"],
        ["pairs of columns (TV)", _figure(facts["two_way"]), ""],
        *([["triples of columns (TV)", _figure(facts["three_way"]), ""]] if "three_way" in facts else []),
        ["correlation of pairs (Cramér's V)", _figure(facts["correlation_difference"]), ""],
        ["values of test rows that are there", f"{100.0 * facts['coverage']:.1f} %", ""],
    ]
    width = max(len(row[1]) for row in rows)
    rows = [[name, figure.rjust(width), largest] for name, figure, largest in rows]
    return table([f"distance to {facts['real_rows']} test rows", "mean".rjust(width), "largest"], rows)


def comparison_text(card: Mapping[str, Any]) -> str:
    """How close a table is to public test rows, and the picture of its marginals; empty for what is no table."""
    parts = []
    if facts := card.get("fidelity"):
        parts.append(
            f"```\n{distances_table(facts)}\n```\n\n"
            "TV is the total variation distance of marginals, from 0 to 1, on the bins and categories of the schema.\n"
            "Two finite samples of one population are not at distance 0. These are exact figures of test data, which\n"
            "no noise protects, and no part of the privacy claim above."
        )
    if picture := card.get("marginals"):
        parts.append(f"![The marginals of every column by class]({picture})")
    return "\n\n".join(parts)


def _figure(number: float) -> str:
    return f"{number:.4f}"
