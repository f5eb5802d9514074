"""What silos with tables are sent: the teacher's weights, and those of a classifier that learnt from synthetic rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from dpdd.common.data import made_patients
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.evaluation.models import classifiers, in_request
from dpdd.common.methods.evaluation.settings import EvaluationSettings
from dpdd.common.models.table_logistic import scorer, weights_shape
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.table_teacher import TableTeacher
from dpdd.server.evaluation.at_silos import sent_models
from dpdd.server.evaluation.linear import learnt_weights

SOME = made_patients.rows("train").subset(np.arange(600))
TEST = made_patients.rows("test")
DATASET = LabelledSet(SOME.rows, SOME.labels, SOME.classes, schema=SOME.schema)
EVERY = ("linear", "teacher", "model", "convnet")


def test_it_learns_from_the_rows_and_for_the_declared_priors() -> None:
    plain, rows = learnt_weights(DATASET), torch.from_numpy(TEST.rows)
    right = (scorer(plain, SOME.schema)(rows).argmax(1).numpy() == TEST.labels).mean()
    assert right > 0.8
    shares = np.bincount(SOME.labels) / len(SOME)
    turned = learnt_weights(replace(DATASET, priors=(0.2, 0.8)))
    np.testing.assert_array_equal(turned[:, :-1], plain[:, :-1])
    np.testing.assert_allclose((turned - plain)[:, -1], np.log([0.2, 0.8]) - np.log(shares), atol=1e-5)


def test_what_a_table_has_is_sent_as_it_answers() -> None:
    generator = np.random.default_rng(1)
    teacher = TableTeacher(generator.normal(size=weights_shape(SOME.schema)).astype(np.float32), SOME.schema)
    assert list(sent_models(DATASET, {}, EVERY)) == ["linear"]
    product = replace(DATASET, teacher=teacher)
    sent = sent_models(product, {}, EVERY)
    assert list(sent) == ["linear", "teacher"]
    settings = EvaluationSettings(models=tuple(each.settings for each in sent.values()))
    run = RunDescription(SOME.classes, SOME.schema.shape, public_seed=0, table=SOME.schema)
    linear, taught = classifiers(in_request([*sent.values()]), settings, run)
    rows = torch.from_numpy(TEST.rows)
    torch.testing.assert_close(taught(rows).float(), teacher.logits(rows))
    torch.testing.assert_close(linear(rows), scorer(learnt_weights(product), SOME.schema)(rows))


def test_a_table_without_rows_has_nothing_to_learn_from() -> None:
    empty = LabelledSet(SOME.rows[:0], SOME.labels[:0], SOME.classes, schema=SOME.schema)
    assert sent_models(empty, {}, EVERY) == {}
