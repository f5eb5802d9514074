"""Class-incremental learning: tasks of new classes, one after the other; after each, train on all sets so far.

A task's classes are released once, by silos that hold that task's records only (`dpdd.common.scenario.task_silo`
names them), so every record is in one release and no budget is shared between tasks. A synthetic set stays usable for
ever: nothing of an earlier task is asked for again, and what a network loses on it is confusion with new classes, not
lost data.

Row t of the matrix of accuracies is about the network after task t; column j is its share of right answers to the
test images of task j, with all classes seen so far to choose from.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpdd.common import flower as _flower  # noqa: F401  (first: it turns Flower's telemetry off)

# isort: split
from flwr.serverapp import Grid

from dpdd.common import datasets
from dpdd.common.datasets import LabelledImages
from dpdd.common.errors import ConfigError
from dpdd.common.scenario import task_of
from dpdd.common.synthesis.dataset import SyntheticSet
from dpdd.server.evaluate import Accuracy, convnet_accuracy
from dpdd.server.pipeline import Run, Stage
from dpdd.server.questions import questions

Matrix = Sequence[Sequence[float]]


def learn(run: Run, grid: Grid) -> dict[str, Any]:
    """Run all tasks of a continual scenario; what `metrics.json` holds, with a part `continual`."""
    assert run.scenario.continual is not None
    test = datasets.load(run.scenario.data.dataset, "test")
    tasks = run.scenario.continual.split(test.classes)
    silos = _silos_by_task(run, len(tasks))
    stages: list[Stage] = []
    sets: list[SyntheticSet] = []
    scores: list[list[Accuracy]] = []
    with run.store() as store:
        for number, classes in enumerate(tasks, start=1):
            run.console.say(f"task {number} of {len(tasks)}: {', '.join(classes)}")
            new = run.gather(grid, questions(run.scenario, silos[number], classes), store)
            sets.append(run.synthesise(new))
            stages += new
            if run.scenario.evaluation.runs:
                with run.phase("evaluation"):
                    scores.append(_scores(run, join(sets), test, tasks[:number]))
        found: dict[str, Any] = {"tasks": [list(task) for task in tasks]}
        accuracy: dict[str, Any] = {}
        if scores:
            sizes = [len(of_classes(test, task)) for task in tasks]
            found |= summary([[score.mean for score in row] for row in scores], sizes)
            last = np.average([score.runs for score in scores[-1]], axis=0, weights=sizes)
            final = Accuracy(tuple(last.tolist()))
            accuracy["convnet"] = {"mean": final.mean, "std": final.std, "runs": list(final.runs)}
        return run.finish(join(sets), accuracy, stages, store, continual=found)


def summary(matrix: Matrix, sizes: Sequence[int]) -> dict[str, Any]:
    """The usual figures; `sizes` are the numbers of test images of the tasks.

    `seen`: accuracy on all classes seen, after each task. `average`: of the last network over tasks. `forgetting`:
    how much an earlier task was better at its best than it is at the end, on average.

    >>> found = summary([[0.9], [0.7, 0.8]], [100, 300])
    >>> [round(value, 3) for value in found["seen"]], round(found["average"], 3), round(found["forgetting"], 3)
    ([0.9, 0.775], 0.75, 0.2)
    """
    last = matrix[-1]
    best = [max(row[task] for row in matrix[task:-1]) for task in range(len(last) - 1)]
    return {
        "matrix": [list(row) for row in matrix],
        "seen": [float(np.average(row, weights=sizes[: len(row)])) for row in matrix],
        "average": statistics.fmean(last),
        "forgetting": statistics.fmean(b - now for b, now in zip(best, last, strict=False)) if best else 0.0,
    }


def of_classes(data: LabelledImages, classes: Sequence[str]) -> LabelledImages:
    """The records of some classes, with labels that are positions in `classes`."""
    new = np.full(len(data.classes), -1, dtype=np.int64)
    for position, name in enumerate(classes):
        new[data.classes.index(name)] = position
    labels = new[data.labels]
    return LabelledImages(data.images[labels >= 0], labels[labels >= 0], tuple(classes))


def join(sets: Sequence[SyntheticSet]) -> SyntheticSet:
    """Sets of different classes as one: the classes of the first, then those of the second, and so on."""
    starts = np.cumsum([0, *(len(made.classes) for made in sets[:-1])])
    labels = [start + made.labels for start, made in zip(starts, sets, strict=True)]
    classes = tuple(name for made in sets for name in made.classes)
    soft = None
    if all(made.soft is not None for made in sets):
        soft = np.zeros((sum(map(len, sets)), len(classes)), dtype=np.float32)
        row = 0
        for start, made in zip(starts, sets, strict=True):
            soft[row : row + len(made), start : start + len(made.classes)] = made.soft
            row += len(made)
    return SyntheticSet(np.concatenate([made.images for made in sets]), np.concatenate(labels), classes, soft)


def _scores(run: Run, made: SyntheticSet, test: LabelledImages, tasks: Sequence[tuple[str, ...]]) -> list[Accuracy]:
    """The accuracy on each task's test images of networks trained on `made`; the seed makes them the same ones."""
    seen = of_classes(test, made.classes)
    return [
        convnet_accuracy(
            made,
            seen.subset(np.isin(seen.labels, [made.classes.index(name) for name in task])),
            run.scenario.evaluation,
            run.scenario.seed,
            run.console,
        )
        for task in tasks
    ]


def _silos_by_task(run: Run, tasks: int) -> dict[int, list[str]]:
    silos: dict[int, list[str]] = {number: [] for number in range(1, tasks + 1)}
    owners = set()
    for name in run.roster.keys:
        owner, number = task_of(name) or (name, 0)
        owners.add(owner)
        silos.setdefault(number, []).append(name)
    run.scenario.privacy.check_silos(owners)
    for number in range(1, tasks + 1):
        if not silos[number]:
            raise ConfigError(f"no silo is enrolled for task {number}: its name would end in '-task-{number}'")
    return silos
