"""The reference of an evaluation: what learners reach that train on the real rows of all simulated silos together.

Only a simulation can say this: no coordinator sees a silo's records. The figures are exact figures of those records,
which no noise protects, so they go into `metrics.json` alone, and into no card.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpdd.client.silo import Silo
from dpdd.common.data import formats
from dpdd.common.errors import ConfigError
from dpdd.common.progress import Progress, silent
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.server.run.scenario import Scenario


def check(scenario: Scenario) -> None:
    """ConfigError where there is nothing to compare with."""
    if not scenario.data.is_table:
        raise ConfigError("--real trains on the real rows of a table, and this scenario's records are images")
    if not scenario.evaluation.runs or scenario.test_rows() is None:
        raise ConfigError("--real goes with an evaluation, and this scenario has none: it needs test data and runs")


def rows_of(silos: Sequence[Silo], scenario: Scenario) -> LabelledSet:
    """The rows of all these silos, by name."""
    schema = scenario.schema.table
    assert schema is not None
    parts = [formats.load(silo.settings.data, silo.folder) for silo in sorted(silos, key=lambda silo: silo.folder.name)]
    rows = np.concatenate([np.asarray(part.features[:], dtype=np.float32) for part in parts])
    return LabelledSet(rows, np.concatenate([part.labels for part in parts]), schema.classes, schema=schema)


def reference(silos: Sequence[Silo], scenario: Scenario, progress: Progress = silent) -> dict[str, Any]:
    """For `metrics.json`: the scores of the scenario's learners, and on how many of the rows they trained."""
    from dpdd.server.evaluation.classical import subset
    from dpdd.server.evaluation.scoring import evaluate

    rows, test = rows_of(silos, scenario), scenario.test_rows()
    assert test is not None
    scores = evaluate(rows, test, scenario.evaluation, None, scenario.seed, progress)
    scores.pop("absent_classes", None)
    for score in scores["accuracy"].values():
        score["labels"] = "real"
    return {"records": len(subset(rows.labels, scenario.evaluation.rows, scenario.seed)), **scores}
