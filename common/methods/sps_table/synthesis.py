"""Rows from noisy marginals: fit a mixture, decide how many rows every class has, and draw or choose them.

The teacher is for the class shares of the fitted records, or for the priors that were declared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.sps_table import classifier, mixture
from dpdd.common.methods.sps_table.marginals import marginals
from dpdd.common.methods.sps_table.rows import draw, herd
from dpdd.common.methods.sps_table.settings import MethodSettings, SynthesisSettings
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.priors import AS_RELEASED, ClassCounts, released_counts, shares
from dpdd.common.synthesis.statistics import Statistics


def synthesise(
    statistics: Sequence[Statistics], method: MethodSettings, settings: SynthesisSettings, run: RunDescription
) -> LabelledSet:
    """A table with as many rows of every class as the settings say, labelled by the classifier in the statistics."""
    layout = marginals(method, run)
    tables = mixture.noisy_tables(statistics[0], layout)
    counts = released_counts(statistics[:1], [method.count_weight])
    assert counts is not None
    fitted = mixture.fit(tables, counts, layout, settings, run.public_seed, run.progress)
    few = run.images_per_class <= settings.herding
    choose = herd if few else draw
    sizes = rows_per_class(replace(counts, counts=fitted.records), settings, run, equal=few)
    rows = [choose(fitted, layout, label, int(size), run.public_seed) for label, size in enumerate(sizes)]
    labels = np.arange(len(run.classes)).repeat(sizes)
    made = LabelledSet(np.concatenate(rows).astype(np.float32), labels, run.classes, schema=run.table)
    if not settings.teacher_rows:
        return made
    assert run.table is not None
    seed, noise = run.public_seed, tables.column_noise
    teacher = classifier.learn(fitted, layout, noise, settings.teacher_rows, seed, run.table)
    if run.priors is not None:
        assumed = shares(run.priors, run.classes, counts)
        teacher = teacher.with_priors(classifier.class_shares(fitted), assumed)
    soft = teacher.probabilities(made.rows).numpy() if settings.soft_labels else None
    return replace(made, teacher=teacher, soft=soft)


def rows_per_class(
    counts: ClassCounts, settings: SynthesisSettings, run: RunDescription, *, equal: bool
) -> NDArray[np.int64]:
    """How many rows every class gets, at most `images_per_class`, and one at least."""
    if settings.class_shares == "equal" or (settings.class_shares == "auto" and equal):
        return np.full(len(run.classes), run.images_per_class)
    wanted = shares(AS_RELEASED, run.classes, counts)
    return np.maximum(np.rint(run.images_per_class * wanted / wanted.max()), 1).astype(np.int64)
