"""Rows from noisy marginals: fit a mixture, decide how many rows every class has, and draw or choose them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.sps_table import mixture
from dpdd.common.methods.sps_table.marginals import marginals
from dpdd.common.methods.sps_table.rows import draw, herd
from dpdd.common.methods.sps_table.settings import MethodSettings, SynthesisSettings
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.priors import AS_RELEASED, ClassCounts, released_counts, shares
from dpdd.common.synthesis.statistics import Statistics


def synthesise(
    statistics: Sequence[Statistics], method: MethodSettings, settings: SynthesisSettings, run: RunDescription
) -> LabelledSet:
    """A table with as many rows of every class as the settings say."""
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
    return LabelledSet(np.concatenate(rows).astype(np.float32), labels, run.classes, schema=run.table)


def rows_per_class(
    counts: ClassCounts, settings: SynthesisSettings, run: RunDescription, *, equal: bool
) -> NDArray[np.int64]:
    """How many rows every class gets, at most `images_per_class`, and one at least."""
    if settings.class_shares == "equal" or (settings.class_shares == "auto" and equal):
        return np.full(len(run.classes), run.images_per_class)
    wanted = shares(AS_RELEASED, run.classes, counts)
    return np.maximum(np.rint(run.images_per_class * wanted / wanted.max()), 1).astype(np.int64)
