"""Evaluation, the private half: histograms of how models answer, one cell per record and model.

Event: one Gaussian over the cells of all histograms.
Sensitivity: under each of the m models a record falls into exactly one cell of the row of its class, (right, wrong) or
a public bin of the model's score, and adds 1/√m to it. A record's contribution is m such cells: its L2 norm is √(m ·
1/m) = 1, exactly, and `ClippedSum` enforces that in integers. Adding or removing a record changes the sums by that
contribution, so m models cost √m in noise, and one Gaussian of sensitivity 1 is all that leaves.
Independence: whoever asks chooses the weights, and could put a decision boundary where the last bit of a logit decides.
A cell must therefore depend on its own record alone to the last bit, or removing one record could move many others'.
Records are read in batches and answered one by one, from one and the same buffer: no record's neighbours, place or
number can reach its logits. (The check on noise that batches rely on would not do alone: hostile weights can be silent
on it.)
What cannot be answered: a record with a NaN or an infinity contributes nothing at all, as everywhere, and neither does
a row of a table with a number that is no code of its column. Where finite pixels or weights give logits that are not
finite, the model has no answer, which counts as its worst: wrong, or the bin farthest from the class.
Adaptivity: the models may have been made from earlier releases of the same silo. The Gaussian's sensitivity and noise
are the same whatever they are, and the ledger composes it with everything before as for any adaptively chosen release.
Public: class list, shape, a table's schema, the models with all their weights, bins, m. Private: everything else, class
counts and the number of records included. Which records are read (all, or those held out: `dpdd.client.holdout`) is
decided record by record; the ledger charges the full event and assumes nothing about what other releases read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from dpdd.client.mechanisms.base import Contribution, Contributions, Mechanism, privatised_sum
from dpdd.client.records.records import Records
from dpdd.common.data.table.rows import odd_rows
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.evaluation.models import Classifier, answers, classifiers
from dpdd.common.methods.evaluation.settings import EvaluationSettings
from dpdd.common.methods.plan import Plan
from dpdd.common.methods.registry import query
from dpdd.common.privacy.clipping import Layout
from dpdd.common.privacy.entropy import Entropy
from dpdd.common.privacy.privatise import Privatised
from dpdd.common.progress import Progress
from dpdd.common.wire.request import ReleaseRequest

BATCH = 16
"""Records that are read at a time; their answers are computed one by one."""


class EvaluationMechanism(Mechanism[EvaluationSettings]):
    """Histograms of right and wrong answers."""

    def run(
        self,
        records: Records,
        request: ReleaseRequest,
        settings: EvaluationSettings,
        plan: Plan,
        entropy: Entropy,
        progress: Progress,
    ) -> Privatised:
        """Count every record once under each model, and privatise the counts."""
        run = RunDescription.of(request)
        models = classifiers(request.stage_input, settings, run)
        return privatised_sum(
            records,
            _layout(request, settings),
            _contributions(models, settings, run),
            plan,
            entropy,
            progress,
            batch=BATCH,
        )


def _layout(request: ReleaseRequest, settings: EvaluationSettings) -> Layout:
    return query(request.method).layout(settings, RunDescription.of(request), request.stage)


def _contributions(models: Sequence[Classifier], settings: EvaluationSettings, run: RunDescription) -> Contributions:
    """1/√m in the cell of each model, for one record after the other."""
    buffer = torch.empty(1, *run.shape)  # always the same memory: kernels may round by the alignment of what they read

    def answerable(record: NDArray[np.float32]) -> bool:
        return bool(np.isfinite(record).all()) and not (run.table and odd_rows(run.table, record[None])[0])

    def contributions(records: NDArray[np.float32], labels: NDArray[np.int64]) -> Contribution:
        rows = np.zeros((len(records), len(models) * settings.cells), dtype=np.float32)
        for row, record, label in zip(rows, records, labels, strict=True):
            if not answerable(record):
                row[:] = np.nan  # which `ClippedSum` drops
                continue
            buffer.copy_(torch.from_numpy(record))
            for number, model in enumerate(models):
                answered = cell(answers(model, buffer), int(label), settings.bins)
                row[number * settings.cells + answered] = settings.weight
        return rows, {}

    return contributions


def cell(logits: NDArray[np.float64], label: int, bins: int) -> int:
    """Where a record with this label falls: 0 for a right answer and 1 for a wrong one, or a bin of class 1's score.

    >>> cell(np.array([0.0, 2.0]), 1, bins=0), cell(np.array([0.0, 2.0]), 0, bins=0), cell(np.array([0.0, 2.0]), 0, 10)
    (0, 1, 8)
    >>> cell(np.array([np.nan, 2.0]), 1, bins=0), cell(np.array([np.nan, 2.0]), 1, bins=10)
    (1, 0)
    """
    answered = bool(np.isfinite(logits).all())
    if not bins:
        return 0 if answered and int(logits.argmax()) == label else 1
    if not answered:
        return 0 if label == 1 else bins - 1
    lead = min(max(float(logits[1]) - float(logits[0]), -700.0), 700.0)
    return min(int(bins / (1.0 + math.exp(-lead))), bins - 1)


MECHANISM = EvaluationMechanism()
