"""All sets of images of a run beside all who learnt from them: what a set made for one kernel is worth to the others.

>>> ours, tangent = ({"mean": mean, "std": 0.0, "runs": [mean]} for mean in (0.871, 0.672))
>>> smaller = {"name": "ipc-1", "images": 10, "accuracy": {"krr": ours}}
>>> print(cross_table({"accuracy": {"krr": ours, "krr-ntk": tangent}, "dataset": {"images": 100}, "also": [smaller]}))
% right, by who learnt  images   krr  krr-ntk
----------------------  ------  ----  -------
the dataset                100  87.1     67.2
ipc-1                       10  87.1        –
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpdd.common.cli import table
from dpdd.server.evaluation.metrics import METRICS


def cross_table(metrics: Mapping[str, Any]) -> str:
    """A row for each set of the run, a column for each learner; empty where there is only one of either, and of rows.

    (Twelve learners of rows are no table that anybody could read; their mean is in each set's own.)
    """
    sets = [("the dataset", metrics["dataset"], metrics["accuracy"])]
    sets += [(row["name"], row, row["accuracy"]) for row in metrics.get("also", ()) if "images" in row]
    learners = list(dict.fromkeys(name for _, _, accuracy in sets for name in accuracy))
    if len(sets) < 2 or len(learners) < 2:
        return ""
    shown = METRICS["accuracy"].show
    rows = []
    for name, facts, accuracy in sets:
        cells = [shown(accuracy[each]["mean"]) if each in accuracy else "–" for each in learners]
        rows.append([name, str(facts["images"]), *cells])
    return table(["% right, by who learnt", "images", *learners], rows)
