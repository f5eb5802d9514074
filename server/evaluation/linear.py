"""The linear classifier that silos with tables evaluate: logistic regression that learnt from the synthetic rows alone.

>>> from dpdd.common.data.made_patients import rows
>>> some = rows("train").subset(np.arange(300))
>>> weights = learnt_weights(LabelledSet(some.rows, some.labels, some.classes, schema=some.schema))
>>> weights.shape, weights.dtype
((2, 108), dtype('float32'))
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from dpdd.common.models import table_logistic
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.priors import log_shift


def learnt_weights(dataset: LabelledSet) -> NDArray[np.float32]:
    """Of hard labels, with scikit-learn's default for how small weights are kept; for the class priors, if declared."""
    assert dataset.schema is not None
    rows, labels = torch.from_numpy(dataset.rows.copy()), torch.from_numpy(dataset.labels.copy())
    weights = table_logistic.fit(rows, labels, dataset.schema, decay=1.0 / len(dataset))
    if dataset.priors:
        counts = np.maximum(np.bincount(dataset.labels, minlength=len(dataset.classes)), 0.5)
        weights[:, -1] += log_shift(counts / counts.sum(), np.array(dataset.priors)).astype(np.float32)
    return weights
