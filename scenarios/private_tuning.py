"""Choosing settings on public data: a dataset that is nobody's secret plays the private one, and its test set judges.

The search changes one setting at a time and keeps what is better. The private dataset is not even loaded, so its test
set cannot have had a say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from dpdd.common import datasets
from dpdd.common.config import Settings
from dpdd.common.datasets import LabelledImages
from dpdd.common.errors import ConfigError
from dpdd.common.progress import Progress, silent
from dpdd.common.randomness import uniforms
from dpdd.scenarios.private_classifiers import key, noise_of, settings_for
from dpdd.scenarios.private_plans import Budget, plan_for

if TYPE_CHECKING:
    from dpdd.scenarios.private_task import Task

SPACES: dict[str, dict[str, tuple[Any, ...]]] = {
    "logistic": {
        "clip": (0.03, 0.1, 0.3),
        "learning_rate": (0.1, 0.2, 0.5, 1.0, 2.0),
        "steps": (50, 100, 300),
        "rate": (0.05, 0.1, 0.3),
        "momentum": (0.5, 0.9),
        "average": (0.2, 0.5, 0.8),
    },
    "lda": {"strength": (0.03, 0.1, 0.2, 0.5, 1.0)},
    "ridge": {"strength": (0.03, 0.1, 0.2, 0.5, 1.0)},
    "finetune": {
        "learning_rate": (0.1, 0.3, 1.0),
        "reach": (6.0, 18.0),
        "clip": (0.3, 1.0),
        "head_share": (0.5, 0.7),
        "trained": ("norms", "all"),
    },
    "scratch": {
        "learning_rate": (0.5, 1.0, 2.0, 4.0),
        "clip": (0.1, 0.3, 1.0),
        "batch": (1024, 2048),
        "shift": (0, 1),
    },
}
"""What is tried, in this order."""

GROUPS = 10
RECORDS = 60_000
"""A dataset without a test set is shuffled and cut to so many records, a sixth of them for the test."""

_SAME = {"fashion-slice": "fashion-mnist"}


def proxy(name: str, private: str) -> tuple[LabelledImages, LabelledImages]:
    """A public dataset's training and test split, to stand in for `private`.

    One with many classes and no test set, such as Tiny-ImageNet, has its classes put together to `GROUPS` groups of
    neighbours (they are sorted by WordNet number, so that neighbours are alike).
    """
    if _SAME.get(name, name) == _SAME.get(private, private):
        raise ConfigError(f"settings tuned on {private} itself would leak it; choose another dataset for --tune-on")
    train = datasets.load(name, "train")
    if name != "tinyimagenet32":
        return train, datasets.load(name, "test")
    return grouped(train)


def grouped(whole: LabelledImages, records: int = RECORDS) -> tuple[LabelledImages, LabelledImages]:
    """Training and test split of a shuffled dataset, its classes put together to `GROUPS` groups."""
    order = np.argsort(uniforms(0, "tuning proxy", len(whole)), kind="stable")[:records]
    labels = whole.labels * GROUPS // len(whole.classes)
    names = tuple(f"group {number}" for number in range(1, GROUPS + 1))
    cut = len(order) - len(order) // 6
    train, test = (LabelledImages(whole.images[part], labels[part], names) for part in (order[:cut], order[cut:]))
    return train, test


def tune(
    method: str,
    task: Task,
    budget: Budget,
    say: Callable[[str], None],
    *,
    space: dict[str, tuple[Any, ...]] | None = None,
    start: Settings | None = None,
    rounds: int = 1,
    progress: Progress = silent,
) -> Settings:
    """The best settings found; `say` gets a line for each trial."""
    best = start or settings_for(method, task)
    space = SPACES[method] if space is None else space
    tried: dict[str, float] = {}

    def share(settings: Settings) -> float:
        about = settings.model_dump_json()
        if about not in tried:
            found = plan_for(method, task, budget, settings, progress=progress).score(noise_of(method, budget, 0))
            words = " ".join(f"{name}={getattr(settings, name)}" for name in space)
            mark = "  best so far" if found > max(tried.values(), default=-1.0) else ""
            say(f"{key(method, task)}  {100 * found:.2f} %  {words}{mark}")
            tried[about] = found
        return tried[about]

    share(best)
    for _ in range(rounds):
        before = best
        for name, values in space.items():
            for value in values:
                other = type(best).model_validate({**best.model_dump(), name: value})
                best = max(best, other, key=share)
        if best == before:
            break
    return best
