"""KIP for tables: a few rows, chosen until their kernel ridge classifier is the one that the releases contain.

The released marginals are the second moment and the class sums of one-hot rows, with more noise than a solver could
bear. So the moments are those of the mixture that SPS for tables fits to them, which are consistent, and the wanted
classifier is its teacher. Both are for equal class shares, as there are as many rows of every class.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.dp_kip.code_descent import improve
from dpdd.common.methods.dp_kip.moments import Goal
from dpdd.common.methods.dp_kip.settings import TableSettings
from dpdd.common.methods.sps_table import classifier, mixture
from dpdd.common.methods.sps_table.marginals import Marginals, marginals
from dpdd.common.methods.sps_table.mixture import Mixture
from dpdd.common.methods.sps_table.rows import herd
from dpdd.common.methods.sps_table.settings import MethodSettings
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.priors import EQUAL, released_counts, shares
from dpdd.common.synthesis.statistics import Statistics

MOST_ROWS = 1000
"""Of all classes together."""


def synthesise(
    statistics: Sequence[Statistics], method: MethodSettings, settings: TableSettings, run: RunDescription
) -> LabelledSet:
    """As many rows of every class, and the teacher; ConfigError where more are asked for than this is meant for."""
    classes = len(run.classes)
    if classes * run.images_per_class > MOST_ROWS:
        raise ConfigError(
            f"kip-table chooses few rows, {MOST_ROWS} of all classes together at most, not "
            f"{classes * run.images_per_class}: take sps-table for many, from the same releases"
        )
    layout = marginals(method, run)
    tables = mixture.noisy_tables(statistics[0], layout)
    counts = released_counts(statistics[:1], [method.count_weight])
    assert counts is not None and run.table is not None
    fitted = mixture.fit(tables, counts, layout, settings.fit, run.public_seed, run.progress)
    rows = settings.fit.teacher_rows
    teacher = classifier.learn(fitted, layout, tables.column_noise, rows, run.public_seed, run.table)
    own, equal = classifier.class_shares(fitted), shares(EQUAL, run.classes, counts)
    second = torch.from_numpy(second_moment(fitted, layout))
    goal = Goal.of(second, torch.from_numpy(teacher.with_priors(own, equal).weights).double())
    labels = np.arange(classes).repeat(run.images_per_class)
    start = [herd(fitted, layout, label, run.images_per_class, run.public_seed) for label in range(classes)]
    codes = improve(
        np.concatenate(start), labels, goal, layout.sizes, settings.ridge, settings.sweeps, progress=run.progress
    )
    if run.priors is not None:
        teacher = teacher.with_priors(own, shares(run.priors, run.classes, counts))
    return LabelledSet(codes.astype(np.float32), labels, run.classes, schema=run.table, teacher=teacher)


def second_moment(fitted: Mixture, layout: Marginals) -> NDArray[np.float64]:
    """Of one-hot rows with a 1 beside them (cells + 1, cells + 1), every class having the same share of them."""
    width = layout.width
    moment = np.zeros((width + 1, width + 1))
    weights = fitted.shares[:, :, None] / len(fitted.shares)
    mean = (weights * fitted.cells).sum((0, 1))
    moment[:width, :width] = np.einsum("ckd,cke->de", weights * fitted.cells, fitted.cells)
    for cells in layout.cells:  # a column has one value
        moment[cells, cells] = np.diag(mean[cells])
    moment[:width, width] = moment[width, :width] = mean
    moment[width, width] = 1.0
    return moment
