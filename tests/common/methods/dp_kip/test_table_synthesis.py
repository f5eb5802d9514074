"""KIP for tables: the moments are those of rows of the mixture, and few rows tell the classes apart."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.dp_kip.table_synthesis import MOST_ROWS, second_moment
from dpdd.common.methods.registry import method
from dpdd.common.methods.sps_table.marginals import Marginals
from dpdd.common.methods.sps_table.mixture import Mixture
from dpdd.common.methods.sps_table.rows import draw
from dpdd.common.methods.sps_table.settings import MethodSettings
from dpdd.common.models import table_logistic
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.statistics import of_one_silo
from tests.methods.harness import CLASSES, TABLE, Case, Trial

CASE = Case.of_table("kip-table", settings={"count_weight": 0.3})


def records() -> tuple[np.ndarray, np.ndarray]:
    """Each code is that of its class with probability 1/2, and any otherwise."""
    generator = np.random.Generator(np.random.PCG64(2))
    labels = generator.integers(0, len(CLASSES), 600)
    columns = []
    for column in TABLE.features:
        own, other = labels % column.size, generator.integers(0, column.size, len(labels))
        columns.append(np.where(generator.random(len(labels)) < 0.5, own, other))
    return np.stack(columns, axis=1).astype(np.float32), labels.astype(np.int64)


def made(per_class: int, **settings: object) -> LabelledSet:
    rows, labels = records()
    answer = Trial.of(CASE).answer(rows, labels, range(600), 0, math.inf)
    chosen = method("kip-table")
    run = RunDescription(CLASSES, TABLE.shape, public_seed=5, images_per_class=per_class, table=TABLE)
    values = {"components": 4, "fits": 1, "steps": 50, "teacher_rows": 500, **settings}
    product = chosen.synthesise(
        [of_one_silo(answer.arrays, answer.event)], CASE.values(), chosen.synthesis_settings(values), run
    )
    assert isinstance(product, LabelledSet)
    return product


def test_the_second_moment_is_that_of_rows_of_the_mixture_with_equal_classes() -> None:
    layout = Marginals(TABLE.features, len(CLASSES), MethodSettings())
    generator = np.random.Generator(np.random.PCG64(3))
    shares = generator.dirichlet(np.ones(3), len(CLASSES))
    cells = np.concatenate([generator.dirichlet(np.ones(size), (len(CLASSES), 3)) for size in layout.sizes], axis=2)
    mixture = Mixture(shares, cells, np.array([1.0, 10.0, 100.0, 1000.0]))
    drawn = np.concatenate([draw(mixture, layout, label, 20_000, 1) for label in range(len(CLASSES))])
    hot = np.hstack([layout.one_hot(drawn.astype(np.float32)).astype(np.float64), np.ones((len(drawn), 1))])
    found = second_moment(mixture, layout)
    np.testing.assert_allclose(found, hot.T @ hot / len(drawn), atol=0.01)
    assert np.linalg.eigvalsh(found).min() > -1e-9
    assert found[-1, -1] == 1.0


def test_a_classifier_that_learns_from_few_rows_is_right_of_the_records() -> None:
    """Chosen rows say more of the classes than herded ones."""
    rows, labels = (torch.from_numpy(each) for each in records())
    right = []
    for sweeps in (0, 20):
        few = made(2, sweeps=sweeps)
        assert np.bincount(few.labels).tolist() == [2] * 4 and few.schema == TABLE and few.soft is None
        weights = table_logistic.fit(torch.from_numpy(few.rows), torch.from_numpy(few.labels), TABLE, 0.01)
        right.append(float((table_logistic.scorer(weights, TABLE)(rows).argmax(1) == labels).double().mean()))
    assert right[1] > max(right[0], 0.7), right


def test_the_teacher_comes_with_the_rows() -> None:
    few = made(2)
    assert few.teacher is not None and few.teacher.probabilities(few.rows).shape == (8, 4)


def test_it_is_for_few_rows() -> None:
    with pytest.raises(ConfigError, match=r"chooses few rows, 1000 .* take sps-table for many"):
        made(MOST_ROWS // 4 + 1)
