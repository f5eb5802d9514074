"""What real records are worth to the literature's ConvNet: all of them, some of them, or those of each silo alone.

None of this is private. Real images are judged as synthetic ones are: by the learner `convnet-dd` on hard labels, whose
images are standardised by their own mean and deviation. A set that is larger than a few hundred images trains for
`epochs`, as 300 steps would not show it often enough.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from pydantic import Field

from dpdd.common.config import Settings
from dpdd.common.progress import Progress, silent
from dpdd.common.randomness import subseed, uniforms
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.scenarios.baselines.base import Positions, Task
from dpdd.server.evaluation.learner_settings import ConvNetDDSettings, LearnerSettings


class JudgeSettings(Settings):
    """`convnet-dd`, how many images per class a set has, and how long training on more images takes."""

    convnet_dd: ConvNetDDSettings = ConvNetDDSettings(runs=1)
    images_per_class: Annotated[int, Field(ge=1)] = 50
    epochs: Annotated[int, Field(ge=1)] = 10
    flips: bool = True


def judged(
    task: Task, dataset: LabelledSet, settings: JudgeSettings, seed: int, progress: Progress = silent
) -> dict[str, float]:
    """Every metric of `convnet-dd`, trained on these images; the mean over its runs."""
    from dpdd.server.evaluation.convnet_dd import dd_convnets
    from dpdd.server.evaluation.scoring import logits_of

    own = settings.convnet_dd
    steps = max(own.steps, math.ceil(settings.epochs * len(dataset) / own.batch)) if len(dataset) else own.steps
    learner = LearnerSettings(convnet_dd=own.model_copy(update={"steps": steps}), flips=settings.flips)
    found = [task.measured(logits_of(each, task.test)) for each in dd_convnets(dataset, learner, seed, progress)]
    return {name: float(np.mean([run[name] for run in found])) for name in found[0]}


def of_records(task: Task, positions: Positions) -> LabelledSet:
    """The private records at these positions, as if they were a synthetic set."""
    return LabelledSet(task.train.images[positions], task.train.labels[positions], task.train.classes)


def some_of_each_class(task: Task, per_class: int, seed: int) -> Positions:
    """Random records, so many of every class, or as many as there are."""
    order = np.argsort(uniforms(seed, "real records", len(task.train)), kind="stable")
    taken = [order[task.train.labels[order] == label][:per_class] for label in range(task.classes)]
    return np.concatenate(taken)


def all_records(task: Task, settings: JudgeSettings, seed: int) -> dict[str, float]:
    """Trained on everything: the upper bound."""
    positions = np.sort(np.concatenate(task.shares))
    return judged(task, of_records(task, positions), settings, seed, task.progress)


def some_records(task: Task, settings: JudgeSettings, seed: int) -> dict[str, float]:
    """Trained on as many real images as a synthetic set has, picked at random: by another `seed`, others."""
    positions = some_of_each_class(task, settings.images_per_class, seed)
    return judged(task, of_records(task, positions), settings, seed, task.progress)


def each_silo_alone(task: Task, settings: JudgeSettings, seed: int) -> dict[str, float]:
    """The mean over silos of what each reaches with its own records, and the worst and the best accuracy."""
    found = [
        judged(task, of_records(task, share), settings, subseed(seed, f"silo {at}"), task.progress)
        for at, share in enumerate(task.shares)
    ]
    accuracies = [silo["accuracy"] for silo in found]
    names = [name for name in found[0] if all(name in silo for silo in found)]
    mean = {name: float(np.mean([silo[name] for silo in found])) for name in names}
    return {**mean, "worst-silo": min(accuracies), "best-silo": max(accuracies)}
