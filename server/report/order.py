"""The one figure that stands for a run, and learners in the order in which they are shown (`shown_order`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpdd.server.evaluation.shown_order import shown_order


def ranked(accuracy: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The learners of `metrics.json` in that order."""
    return shown_order({name: score.get("labels") for name, score in accuracy.items()})


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
