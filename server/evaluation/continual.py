"""Class-incremental learning: tasks of new classes, one after the other; after each, learn from all sets so far.

A task's classes are released once, by silos that hold that task's records only (`dpdd.server.run.scenario.task_silo`
names them), so every record is in one release and no budget is shared between tasks. A synthetic set stays usable for
ever: nothing of an earlier task is asked for again, and what a network loses on it is confusion with new classes, not
lost data.

Where the method's releases contain a classifier, those of all tasks contain one for all classes (`joint_teacher` of its
public half). It labels lessons for the networks, and is saved with the joined set.

Row t of a matrix of accuracies is about what was learnt after task t; column j is the share of right answers to the
test images of task j, with all classes seen so far to choose from. Everything is trained once per step.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dpdd.common import flower as _flower  # noqa: F401  (first: it turns Flower's telemetry off)

# isort: split
from flwr.serverapp import Grid

from dpdd.common.data import benchmarks
from dpdd.common.data.benchmarks import LabelledImages
from dpdd.common.errors import ConfigError
from dpdd.common.methods.registry import method
from dpdd.common.models.backbone import Backbone
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.teacher import Teacher
from dpdd.server.evaluation import public_network
from dpdd.server.evaluation.convnet import Accuracy, accuracy
from dpdd.server.run.pipeline import Run, Stage
from dpdd.server.run.requests import request_groups
from dpdd.server.run.scenario import task_of

Matrix = Sequence[Sequence[float]]


def learn(run: Run, grid: Grid) -> dict[str, Any]:
    """Run all tasks of a continual scenario; what `metrics.json` holds, with a part `continual`."""
    scenario = run.scenario
    assert scenario.continual is not None
    public = public_network.public_backbone(scenario)
    test = benchmarks.load(scenario.data.dataset, "test")
    tasks = scenario.continual.split(test.classes)
    silos = _silos_by_task(run, len(tasks))
    stages: list[list[Stage]] = []
    sets: list[LabelledSet] = []
    scores: list[dict[str, list[Accuracy]]] = []
    with run.store() as store:
        for number, classes in enumerate(tasks, start=1):
            run.console.say(f"task {number} of {len(tasks)}: {', '.join(classes)}")
            stages.append(run.gather(grid, request_groups(scenario, silos[number], classes), store))
            sets.append(run.synthesise(stages[-1]))
            made = join(sets, _teacher(sets, stages))
            if scenario.evaluation.runs:
                with run.phase("evaluation"):
                    scores.append(_scores(run, made, public, test, tasks[:number]))
        sizes = [len(of_classes(test, task)) for task in tasks]
        learners = {name: [step[name] for step in scores] for name in (scores[-1] if scores else ())}
        final = {
            name: Accuracy(tuple(np.average([score.runs for score in rows[-1]], axis=0, weights=sizes).tolist()))
            for name, rows in learners.items()
        }
        figures = {name: summary([[s.mean for s in row] for row in rows], sizes) for name, rows in learners.items()}
        return run.finish(
            made,
            public_network.described(final, made, scenario.evaluation, public),
            [stage for task in stages for stage in task],
            store,
            continual={"tasks": [list(task) for task in tasks], "learners": figures},
        )


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


def join(sets: Sequence[LabelledSet], teacher: Teacher | None = None) -> LabelledSet:
    """Sets of different classes as one: the classes of the first, then those of the second, and so on.

    Soft labels stay what each set's own teacher gave them, with no chance for the classes of other sets: an image's
    task is known. `teacher` is one for all classes.
    """
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
    images = np.concatenate([made.images for made in sets])
    return LabelledSet(images, np.concatenate(labels), classes, soft, teacher)


def _teacher(sets: Sequence[LabelledSet], tasks: Sequence[Sequence[Stage]]) -> Teacher | None:
    """A classifier for the classes of all tasks: that of the only one, or what their first stages say together.

    None where the method has no such thing, or where silos sent finished sets, and so no sums that could be joined.
    """
    requests = [stages[0].asked[0].request for stages in tasks]
    firsts = [stages[0].statistics for stages in tasks]
    chosen = method(requests[0].method)
    joint_teacher: Callable[..., Teacher | None] | None = getattr(chosen.synthesis(), "joint_teacher", None)
    if joint_teacher is None or any(first is None for first in firsts):
        return None
    if len(sets) == 1:
        return sets[0].teacher
    classes = [request.classes for request in requests]
    return joint_teacher(firsts, chosen.settings(requests[0].settings), classes, requests[0].shape)


def _scores(
    run: Run, made: LabelledSet, public: Backbone | None, test: LabelledImages, tasks: Sequence[tuple[str, ...]]
) -> dict[str, list[Accuracy]]:
    """The accuracy on each task's test images of everything that learns from `made`, which is trained once."""
    seen = of_classes(test, made.classes)
    parts = [seen.subset(np.isin(seen.labels, [made.classes.index(name) for name in task])) for task in tasks]
    learnt = public_network.learners(made, run.scenario.evaluation, public, run.scenario.seed, run.console)
    return {name: [accuracy(each, part) for part in parts] for name, each in learnt.items()}


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
