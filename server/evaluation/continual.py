"""Class-incremental learning: tasks of new classes, one after the other; after each, learn from all sets so far.

A task's classes are released once, by silos that hold that task's records only (`dpdd.server.run.scenario.task_silo`
names them), so every record is in one release and no budget is shared between tasks. A synthetic set stays usable for
ever: nothing of an earlier task is asked for again, and what a network loses on it is confusion with new classes, not
lost data.

Where the method's releases contain a classifier, those of all tasks contain one for all classes (`joint_teacher` of its
public half). It labels augmentations for the networks, and is saved with the joined set.

Row t of a matrix of accuracies is about what was learnt after task t; column j is the share of right answers to the
test images of task j, with all classes seen so far to choose from. Everything is trained once per step. Metrics other
than accuracy are measured after the last task, over all classes.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpdd.common import flower as _flower  # noqa: F401  (first: it turns Flower's telemetry off)

# isort: split
from flwr.serverapp import Grid
from numpy.typing import NDArray

from dpdd.common.data.labelled_images import LabelledImages
from dpdd.common.data.labelled_rows import LabelledRows
from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import DataKind, RunDescription
from dpdd.common.methods.registry import method
from dpdd.common.models.backbone import Backbone
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.linear_teacher import LinearTeacher
from dpdd.common.synthesis.priors import ClassCounts, Priors, shares
from dpdd.server.evaluation.base import Answers, Score
from dpdd.server.evaluation.scoring import ACCURACY, absent_classes, described, logits_of, measured, train_learners
from dpdd.server.run.pipeline import Run, Stage, class_counts
from dpdd.server.run.requests import request_groups
from dpdd.server.run.scenario import task_of

Matrix = Sequence[Sequence[float]]


@dataclass(frozen=True)
class TaskScores:
    """Scores of one learner after a task: its accuracy on each task so far, and all metrics over all classes seen."""

    accuracy: Sequence[Score]
    overall: Mapping[str, Score]


def learn(run: Run, grid: Grid) -> dict[str, Any]:
    """Run all tasks of a continual scenario; what `metrics.json` holds, with a part `continual`."""
    scenario = run.scenario
    assert scenario.continual is not None
    public = run.public_backbone()
    test = run.test_data()
    assert not isinstance(test, LabelledRows)  # a scenario with a table and tasks is refused
    tasks = scenario.continual.split(scenario.schema.classes)
    silos = _silos_by_task(run, len(tasks))
    stages: list[list[Stage]] = []
    sets: list[LabelledSet] = []
    steps: list[dict[str, TaskScores]] = []
    asked = [request_groups(scenario, silos[number], classes) for number, classes in enumerate(tasks, start=1)]
    with run.store() as store:
        run.rehearse(grid, asked, store)
        for number, classes in enumerate(tasks, start=1):
            run.console.say(f"task {number} of {len(tasks)}: {', '.join(classes)}")
            stages.append(run.gather(grid, asked[number - 1], store))
            product = run.synthesise(stages[-1])
            if not isinstance(product, LabelledSet):
                raise ConfigError(f"{scenario.method.name} makes a model, and continual learning joins datasets")
            sets.append(product)
            joined = _with_priors(join(sets, _teacher(sets, stages, scenario.synthesis.priors)), run, stages)
            if test is not None:
                with run.phase("evaluation"):
                    steps.append(_score(run, joined, public, test, tasks[:number]))
        sizes = [] if test is None else [len(of_classes(test, task)) for task in tasks]
        final, figures = {}, {}
        for name in steps[-1] if steps else ():
            rows = [step[name].accuracy for step in steps]
            accuracy = Score(tuple(np.average([score.runs for score in rows[-1]], axis=0, weights=sizes).tolist()))
            final[name] = {**steps[-1][name].overall, ACCURACY: accuracy}
            figures[name] = summary([[score.mean for score in row] for row in rows], sizes)
        return run.finish(
            joined,
            {**described(final, joined, scenario.evaluation, public), **({} if test is None else absent_classes(test))},
            [stage for task in stages for stage in task],
            store,
            continual={"tasks": [list(task) for task in tasks], "learners": figures},
        )


def summary(matrix: Matrix, sizes: Sequence[int]) -> dict[str, Any]:
    """The usual figures; `sizes` are the numbers of test images of the tasks.

    `seen`: accuracy on all classes seen, after each task. `average`: of the last network over tasks. `forgetting`:
    how much an earlier task was better at its best than it is at the end, on average.

    >>> figures = summary([[0.9], [0.7, 0.8]], [100, 300])
    >>> [round(value, 3) for value in figures["seen"]], round(figures["average"], 3), round(figures["forgetting"], 3)
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
    labels = relabelled(data.labels, data.classes, classes)
    return LabelledImages(data.images[labels >= 0], labels[labels >= 0], tuple(classes))


def relabelled(labels: NDArray[np.int64], classes: Sequence[str], some: Sequence[str]) -> NDArray[np.int64]:
    """Labels, which are positions in `classes`, as positions in `some` of them; -1 for the others.

    >>> relabelled(np.array([0, 1, 2]), ("a", "b", "c"), ("c", "a"))
    array([ 1, -1,  0])
    """
    new = np.full(len(classes), -1, dtype=np.int64)
    for position, name in enumerate(some):
        new[list(classes).index(name)] = position
    return new[labels]


def join(sets: Sequence[LabelledSet], teacher: LinearTeacher | None = None) -> LabelledSet:
    """Sets of different classes as one: the classes of the first, then those of the second, and so on.

    Soft labels stay what each set's own teacher gave them, with no chance for the classes of other sets: an image's
    task is known. `teacher` is one for all classes.
    """
    starts = np.cumsum([0, *(len(each.classes) for each in sets[:-1])])
    labels = [start + each.labels for start, each in zip(starts, sets, strict=True)]
    classes = tuple(name for each in sets for name in each.classes)
    soft = None
    if all(each.soft is not None for each in sets):
        soft = np.zeros((sum(map(len, sets)), len(classes)), dtype=np.float32)
        row = 0
        for start, each in zip(starts, sets, strict=True):
            soft[row : row + len(each), start : start + len(each.classes)] = each.soft
            row += len(each)
    images = np.concatenate([each.images for each in sets])
    return LabelledSet(images, np.concatenate(labels), classes, soft, teacher)


def _with_priors(joined: LabelledSet, run: Run, tasks: Sequence[Sequence[Stage]]) -> LabelledSet:
    """The set of all tasks so far with the class shares that are declared for it, if any."""
    priors = run.scenario.synthesis.priors
    if priors is None:
        return joined
    counts = [class_counts(stages) for stages in tasks]
    parts = [each for each in counts if each is not None]
    together = ClassCounts(
        np.concatenate([part.counts for part in parts]), np.concatenate([part.known for part in parts])
    )
    assumed = shares(priors, joined.classes, together if len(parts) == len(counts) else None)
    return replace(joined, priors=tuple(assumed.tolist()))


def _teacher(
    sets: Sequence[LabelledSet], tasks: Sequence[Sequence[Stage]], priors: Priors | None
) -> LinearTeacher | None:
    """A classifier for the classes of all tasks: that of the only one, or what their first stages say together.

    None where the method has no such thing, or where silos sent finished sets, and so no sums that could be joined.
    """
    requests = [stages[0].asked[0].request for stages in tasks]
    firsts = [stages[0].statistics for stages in tasks if stages[0].statistics is not None]
    if len(firsts) < len(tasks):
        return None
    if len(sets) == 1:
        return sets[0].teacher
    chosen, classes = method(requests[0].method), [request.classes for request in requests]
    settings = chosen.settings(requests[0].settings)
    return chosen.joint_teacher(firsts, settings, classes, RunDescription.of(requests[0], priors=priors))


def _score(
    run: Run, dataset: LabelledSet, public: Backbone | None, test: LabelledImages, tasks: Sequence[tuple[str, ...]]
) -> dict[str, TaskScores]:
    """How good everything is that learns from `dataset`: each is trained once, and sees each test image once."""
    settings, seen = run.scenario.evaluation, of_classes(test, dataset.classes)
    parts = [seen.subset(np.isin(seen.labels, [dataset.classes.index(name) for name in task])) for task in tasks]
    labels = np.concatenate([part.labels for part in parts])
    scores = {}
    for name, classifiers in train_learners(dataset, settings, public, run.scenario.seed, run.console).items():
        logits = [[logits_of(classifier, part) for part in parts] for classifier in classifiers]
        scores[name] = TaskScores(
            [
                measured([Answers.of_logits(answers[task]) for answers in logits], part.labels, ())[ACCURACY]
                for task, part in enumerate(parts)
            ],
            measured(
                [Answers.of_logits(np.concatenate(answers)) for answers in logits],
                labels,
                settings.metrics_of(DataKind.IMAGE),
            ),
        )
    return scores


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
