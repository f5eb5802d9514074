"""The scores in `metrics.json`, as tables for people.

>>> score = {"mean": 0.8125, "std": 0.01, "runs": [0.8025, 0.8225], "labels": "hard"}
>>> print(score_table({"accuracy": {"convnet": score}}))
learner               learnt from  % right on real test data
--------------------  -----------  -------------------------
ConvNet from scratch  hard labels  81.2 ± 1.0
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from dpdd.common.cli import table
from dpdd.server.evaluation.bundled import BUNDLED
from dpdd.server.evaluation.learners import LEARNERS
from dpdd.server.evaluation.metrics import METRICS, Metric

_TITLES = {
    **{name: learner.title for name, learner in LEARNERS.items()},
    **{name: bundled.title for name, bundled in BUNDLED.items()},
    "linear": "logistic regression on one-hot cells",
}

_LEARNT_FROM = {
    "teacher": "teacher-labelled augmentations",
    "lessons": "teacher-labelled augmentations",  # its name in older runs
    "soft": "soft labels",
    "hard": "hard labels",
    "pool": "public pool, the teacher's soft labels",
    "real": "real records",
}


def tables(metrics: Mapping[str, Any]) -> list[str]:
    """Everything that there is to show of what `metrics.json` holds; nothing for a run without evaluation."""
    shown = []
    if metrics["accuracy"]:
        shown.append(score_table(metrics))
        if real := metrics.get("real"):
            shown.append(f"{real_in_words(real)}\n\n{score_table(real)}")
        if metrics.get("continual", {}).get("learners"):
            shown.append(continual_table(metrics))
        if absent := metrics.get("absent_classes"):
            whom = "it" if len(absent) == 1 else "them"
            shown.append(f"no test record is of {', '.join(absent)}: averages over classes leave {whom} out")
    shown += left_out_lines(metrics)
    if metrics.get("at_silos", {}).get("models"):
        shown.append(at_silos_table(metrics))
    return shown


def left_out_lines(about: Mapping[str, Any]) -> list[str]:
    """A line for every learner that could not learn from this set, and why; `about` is of `metrics.json` or a card.

    >>> left_out_lines({"learners_left_out": {"lda": "its rows are all of one class"}})
    ['without linear discriminant analysis: its rows are all of one class']
    """
    return [f"without {_TITLES[name]}: {why}" for name, why in about.get("learners_left_out", {}).items()]


def real_in_words(real: Mapping[str, Any]) -> str:
    """What the scores on real records are."""
    return f"for comparison, trained on {real['records']} real records of the simulated silos, which no noise protects:"


def score_table(metrics: Mapping[str, Any]) -> str:
    """A row per learner, a column per metric."""
    columns = {"accuracy": metrics["accuracy"], **metrics.get("metrics", {})}
    rows = []
    for name, score in metrics["accuracy"].items():
        values = [_value(METRICS[column], column_scores[name]) for column, column_scores in columns.items()]
        rows.append([_title(name, score), _learnt_from(score), *values])
    rows += [[title, "", *values] for title, values in _together(metrics, tuple(columns))]
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


def at_silos_table(metrics: Mapping[str, Any]) -> str:
    """A row per model that silos evaluated: each figure with its 95 % interval; then whose records, and at what cost.

    >>> figure = {"mean": 0.81, "low": 0.779, "high": 0.838}
    >>> print(at_silos_table({"at_silos": {
    ...     "models": {"teacher": {"accuracy": figure, "balanced-accuracy": figure}}, "silos": ["north", "west"],
    ...     "held_out": True, "in_sample": [], "epsilon": 0.5, "delta": 1e-5, "current": True,
    ...     "privacy": [{"together": {"epsilon": 1.1, "delta": 1e-5}}] * 2}}))
    model    % right at the silos  balanced accuracy, %
    -------  --------------------  --------------------
    teacher  81.0 (77.9 to 83.8)   81.0 (77.9 to 83.8)
    95 % intervals, for sampling and noise; on records that 2 silos held out (ε = 0.5, δ = 1e-05; with the release
    before, ε = 1.1 at δ = 1e-05)
    """
    about = metrics["at_silos"]
    titles = {
        "accuracy": ("% right at the silos", METRICS["accuracy"]),
        "balanced-accuracy": (METRICS["balanced-accuracy"].title, METRICS["balanced-accuracy"]),
        "roc-auc": ("ROC AUC", METRICS["macro-roc-auc"]),
    }
    measured = [name for name in titles if name in next(iter(about["models"].values()))]
    rows = []
    for name, figures in about["models"].items():
        cells = [_interval(titles[each][1], figures[each]) for each in measured]
        rows.append([_TITLES[name], *cells])
    count = f"{len(about['silos'])} silo{'s' if len(about['silos']) > 1 else ''}"
    if about["held_out"]:
        read = f"on records that {count} held out"
    else:
        read = f"IN-SAMPLE: {', '.join(about['in_sample'])} evaluated on records that the dataset was made from"
    old = "" if about["current"] else "; of models that learnt from an earlier dataset of this run"
    words = f"95 % intervals, for sampling and noise; {read} ({_cost(about)}){old}"
    return f"{table(['model', *(titles[each][0] for each in measured)], rows)}\n{textwrap.fill(words, 110)}"


def _interval(metric: Metric, figure: Mapping[str, float]) -> str:
    return f"{metric.show(figure['mean'])} ({metric.show(figure['low'])} to {metric.show(figure['high'])})"


def _cost(about: Mapping[str, Any]) -> str:
    """What evaluation cost each silo, and what the dearest has spent in this run."""
    if about["epsilon"] is None:
        return "without noise"
    together = [row["together"] for row in about["privacy"]]
    spent = f"ε = {about['epsilon']:g}, δ = {about['delta']:g}"
    if any(row["epsilon"] is None for row in together):
        return spent
    dearest = max(together, key=lambda row: float(row["epsilon"]))
    return f"{spent}; with the release before, ε = {dearest['epsilon']:g} at δ = {dearest['delta']:g}"


def learner_facts(metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Per learner, as a card shows it: what it is, what it learnt from, in how many runs, and each metric's figures.

    >>> score = {"mean": 0.8125, "std": 0.01, "runs": [0.8025, 0.8225], "labels": "hard"}
    >>> (row,) = learner_facts({"accuracy": {"convnet": score}})
    >>> row["learner"], row["learnt_from"], row["runs"], row["metrics"]
    ('ConvNet from scratch', 'hard labels', 2, {'accuracy': {'mean': 0.8125, 'std': 0.01}})
    """
    columns = {"accuracy": metrics["accuracy"], **metrics.get("metrics", {})}
    return [
        {
            "learner": _title(name, score),
            "learnt_from": _learnt_from(score),
            "runs": len(score["runs"]),
            "metrics": {
                column: {"mean": of[name]["mean"], "std": of[name]["std"]}
                for column, of in columns.items()
                if name in of
            },
        }
        for name, score in metrics["accuracy"].items()
    ]


def together_facts(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """What a card says of all learners together, and of those that could not learn; nothing where there is none."""
    return {key: metrics[key] for key in ("mean_over_learners", "best_learner", "learners_left_out") if key in metrics}


def _together(about: Mapping[str, Any], columns: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Two rows, by title: the mean over learners, and each metric's best; none where that was not computed."""
    means, best = about.get("mean_over_learners"), about.get("best_learner")
    if not means or not best:
        return []
    count = max(mean["learners"] for mean in means.values())
    return [
        (
            f"mean of {count} learners",
            [_value(METRICS[name], means[name]) if name in means else "" for name in columns],
        ),
        ("best single", [METRICS[name].show(best[name]["mean"]) if name in best else "" for name in columns]),
    ]


def facts_table(learners: Sequence[Mapping[str, Any]], about: Mapping[str, Any] | None = None) -> str:
    """What `learner_facts` gave, as a table; and the rows of all learners together, if `about` has them."""
    columns = list(dict.fromkeys(name for row in learners for name in row["metrics"]))
    rows = []
    for row in learners:
        values = [
            _value(METRICS[name], {**row["metrics"][name], "runs": range(row["runs"])})
            if name in row["metrics"]
            else ""
            for name in columns
        ]
        rows.append([row["learner"], row["learnt_from"], str(row["runs"]), *values])
    rows += [[title, "", "", *values] for title, values in _together(about or {}, columns)]
    return table(["learner", "learnt from", "runs", *(METRICS[name].title for name in columns)], rows)


def _learnt_from(score: Mapping[str, Any]) -> str:
    return _LEARNT_FROM[score["labels"]] if "labels" in score else "the releases"


def _title(name: str, score: Mapping[str, Any]) -> str:
    return _TITLES[name].format_map(score)


def _value(metric: Metric, score: Mapping[str, Any]) -> str:
    spread = f" ± {metric.show(score['std'])}" if len(score["runs"]) > 1 else ""
    return f"{metric.show(score['mean'])}{spread}"
