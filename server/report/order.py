"""In which order learners are shown: what the images alone are worth first, then what comes with other help.

>>> [name for name in sorted(["teacher", "convnet", "convnet-dd", "probe"], key=lambda name: rank(
...     name, {"convnet-dd": "hard", "convnet": "teacher", "probe": "hard"}.get(name)))]
['convnet-dd', 'probe', 'convnet', 'teacher']
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FIRST = "convnet-dd"
"""The literature's protocol: a small ConvNet from scratch on hard labels."""
_LABELS = ("hard", "soft", "teacher", "lessons", "pool")


def rank(name: str, labels: str | None) -> tuple[int, int]:
    """Hard labels before others, and the literature's protocol before all; what needs no labels is last."""
    return (0 if name == FIRST else 1, _LABELS.index(labels) if labels in _LABELS else len(_LABELS))


def ranked(accuracy: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The learners of `metrics.json` in that order."""
    return sorted(accuracy, key=lambda name: rank(name, accuracy[name].get("labels")))


MEAN = "mean"
"""The name of the figure of all learners of a table together."""


@dataclass(frozen=True)
class Headline:
    """The one accuracy that stands for a run: whose it is, by name and in words."""

    name: str
    mean: float
    words: str


def headline(metrics: Mapping[str, Any]) -> Headline | None:
    """Of a table the mean over learners, of images the first in the order; None where nothing was evaluated.

    >>> score = {"mean": 0.8, "std": 0.0, "runs": [0.8], "labels": "hard"}
    >>> headline({"accuracy": {"convnet-dd": score}}).words
    'convnet-dd on hard labels'
    """
    together = (metrics.get("mean_over_learners") or {}).get("accuracy")
    if together is not None:
        return Headline(MEAN, together["mean"], f"the mean of {together['learners']} learners")
    for name in ranked(metrics["accuracy"])[:1]:
        score = metrics["accuracy"][name]
        hard = score.get("labels") == "hard"
        return Headline(name, score["mean"], f"{name} on hard labels" if hard else f"{name}, not on hard labels alone")
    return None
