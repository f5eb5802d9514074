"""The classifier in the releases: logistic regression on rows that the fitted mixture draws.

Naive Bayes reads a classifier off the columns' marginals, and the mixture itself is another one: Bayes' rule with its
densities. Both count columns that say the same twice, or follow noise in products of many factors. Logistic regression
on many rows of the mixture counts what columns say together, once (docs/sps-table.md has figures). It is linear in the
cells, so it has one shape whatever the fit was.

Its weights are kept small in proportion to the noise: `decay` is the noise of a cell of a column as a share of all
records.
"""

from __future__ import annotations

import numpy as np
import torch

from dpdd.common.data.table.schema import TableSchema
from dpdd.common.methods.sps_table.marginals import Floats, Marginals
from dpdd.common.methods.sps_table.mixture import Mixture
from dpdd.common.methods.sps_table.rows import draw
from dpdd.common.models import table_logistic
from dpdd.common.synthesis.table_teacher import TableTeacher

LEAST_DECAY, MOST_DECAY = 1e-4, 1.0


def class_shares(mixture: Mixture) -> Floats:
    """The share of every class in the fitted records, one record at least."""
    records = np.maximum(mixture.records, 1.0)
    shares: Floats = records / records.sum()
    return shares


def learn(
    mixture: Mixture, marginals: Marginals, column_noise: float, rows: int, seed: int, schema: TableSchema
) -> TableTeacher:
    """The teacher for the mixture's own class shares, from about so many rows of it."""
    shares = class_shares(mixture)
    sizes = np.maximum(np.rint(rows * shares), 1).astype(np.int64)
    drawn = [draw(mixture, marginals, label, int(size), seed, "to learn from") for label, size in enumerate(sizes)]
    codes, labels = torch.from_numpy(np.concatenate(drawn)), torch.from_numpy(np.arange(len(sizes)).repeat(sizes))
    decay = float(np.clip(column_noise / np.maximum(mixture.records, 1.0).sum(), LEAST_DECAY, MOST_DECAY))
    return TableTeacher(table_logistic.fit(codes, labels, schema, decay), schema)
