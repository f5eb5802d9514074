"""The scores in `metrics.json`, as tables for people.

>>> score = {"mean": 0.8125, "std": 0.01, "runs": [0.8025, 0.8225], "labels": "hard"}
>>> print(score_table({"accuracy": {"convnet": score}}))
learner               learnt from  % right on real test data
--------------------  -----------  -------------------------
ConvNet from scratch  hard labels  81.2 ± 1.0
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpdd.common.cli import table
from dpdd.server.evaluation.bundled import BUNDLED
from dpdd.server.evaluation.learners import LEARNERS
from dpdd.server.evaluation.metrics import METRICS, Metric

_TITLES = {
    **{name: learner.title for name, learner in LEARNERS.items()},
    **{name: bundled.title for name, bundled in BUNDLED.items()},
}

_LEARNT_FROM = {
    "teacher": "teacher-labelled augmentations",
    "lessons": "teacher-labelled augmentations",  # its name in older runs
    "soft": "soft labels",
    "hard": "hard labels",
}


def tables(metrics: Mapping[str, Any]) -> list[str]:
    """Everything that there is to show of what `metrics.json` holds; nothing for a run without evaluation."""
    if not metrics["accuracy"]:
        return []
    continual = metrics.get("continual", {}).get("learners")
    shown = [score_table(metrics), *([continual_table(metrics)] if continual else [])]
    absent = metrics.get("absent_classes", [])
    if absent:
        whom = "it" if len(absent) == 1 else "them"
        shown.append(f"no test record is of {', '.join(absent)}: averages over classes leave {whom} out")
    return shown


def score_table(metrics: Mapping[str, Any]) -> str:
    """A row per learner, a column per metric."""
    columns = {"accuracy": metrics["accuracy"], **metrics.get("metrics", {})}
    rows = []
    for name, score in metrics["accuracy"].items():
        source = _LEARNT_FROM[score["labels"]] if "labels" in score else "the releases"
        values = [_value(METRICS[column], column_scores[name]) for column, column_scores in columns.items()]
        rows.append([_title(name, score), source, *values])
    return table(["learner", "learnt from", *(METRICS[column].title for column in columns)], rows)


def continual_table(metrics: Mapping[str, Any]) -> str:
    """Per learner: % right on all classes seen, after each task; and its ceiling, where that was run."""
    continual, accuracy = metrics["continual"], METRICS["accuracy"]
    joint = continual.get("joint")
    header = ["% right on classes seen, after", *(f"task {number + 1}" for number in range(len(continual["tasks"])))]
    rows = []
    for name, figures in continual["learners"].items():
        shares = [*figures["seen"], figures["forgetting"]]
        row = [_title(name, metrics["accuracy"][name]), *(accuracy.show(share) for share in shares)]
        if joint:
            row.append(accuracy.show(joint[name]["mean"]) if name in joint else "")
        rows.append(row)
    return table([*header, "forgetting", *(["all at once"] if joint else [])], rows)


def _title(name: str, score: Mapping[str, Any]) -> str:
    return _TITLES[name].format_map(score)


def _value(metric: Metric, score: Mapping[str, Any]) -> str:
    spread = f" ± {metric.show(score['std'])}" if len(score["runs"]) > 1 else ""
    return f"{metric.show(score['mean'])}{spread}"
