"""The teacher of a table: a file that refuses garbage, and rows to label, as codes or as columns of a file."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from dpdd.common.data.table.columns import Categorical, Numeric
from dpdd.common.data.table.decoding import decode
from dpdd.common.data.table.rows import codes_of
from dpdd.common.data.table.schema import TableSchema
from dpdd.common.errors import DataError, IntegrityError
from dpdd.common.models.table_logistic import weights_shape
from dpdd.common.synthesis.distilled_set import DistilledSet, from_arrays
from dpdd.common.synthesis.image_embedding import ImageEmbedding
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.product_files import TEACHER
from dpdd.common.synthesis.table_teacher import TableTeacher
from dpdd.common.synthesis.teacher import Teacher
from tests.methods.harness import CLASSES, TABLE, rows

CODES, LABELS = rows(40, TABLE, seed=2)


def teacher(seed: int = 0) -> TableTeacher:
    weights = np.random.default_rng(seed).normal(size=weights_shape(TABLE)).astype(np.float32)
    return TableTeacher(weights, TABLE)


def labelled(learnt: TableTeacher | None) -> LabelledSet:
    return LabelledSet(CODES, LABELS, CLASSES, teacher=learnt, schema=TABLE)


def test_round_trip(tmp_path: Path) -> None:
    one = teacher()
    one.save(tmp_path)
    loaded = TableTeacher.load(tmp_path)
    assert loaded is not None and loaded.schema == TABLE and loaded.classes == len(CLASSES)
    assert np.array_equal(loaded.weights, one.weights)
    first = (tmp_path / TEACHER).read_bytes()
    loaded.save(tmp_path)
    assert (tmp_path / TEACHER).read_bytes() == first


def test_codes_and_columns_get_the_same_labels() -> None:
    one = teacher()
    expected = torch.softmax(one.logits(torch.from_numpy(CODES)), 1)
    assert torch.allclose(expected.sum(1), torch.ones(40))
    table = decode(TABLE, codes_of(TABLE, CODES, LABELS), np.random.default_rng(3))
    texts = {
        name: [None if cell is None else str(cell) for cell in column.tolist()]
        for name, column in table.items()
        if name != TABLE.label
    }
    for given in (CODES, CODES.astype(np.int64), CODES.tolist(), torch.from_numpy(CODES), table, texts):
        given = np.array(given) if isinstance(given, list) else given
        assert torch.equal(one.probabilities(given), expected)
    assert tuple(one.probabilities(CODES[:0]).shape) == (0, len(CLASSES))
    assert tuple(one.probabilities({name: [] for name in texts}).shape) == (0, len(CLASSES))


def test_cells_are_read_as_a_silo_reads_them() -> None:
    one = teacher()
    odd = {
        "age": ["-5", "n/a"],
        "sex": ["f", " m"],
        "dose": [1e300, "7"],
        "day": ["2030-01-01", "2001-01-01"],
        "pain": [None, "much"],
        "ward": ["unheard of", ""],
        "more": ["not", "looked at"],
    }
    codes = np.array([[0, 0, 5, 7, 3, 2], [10, 1, 3, 0, 2, 3]])
    assert torch.equal(one.probabilities(odd), one.probabilities(codes))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (np.zeros((2, 5)), "rows of 6 codes each, or columns by name, not float64 of shape"),
        (np.zeros(6), "rows of 6 codes"),
        (np.zeros((2, 6), dtype=object), "not object"),
        (np.full((2, 6), 0.5), "row 1 holds a number that is no code"),
        (np.array([[0] * 6, [0, 2, 0, 0, 0, 0]]), "row 2 holds"),
        (np.full((1, 6), np.nan), "row 1 holds"),
        ({"age": [1]}, "needs the column 'sex', which is not there"),
        ({name: [1] * (1 + (name == "age")) for name in TABLE.names}, "different numbers of rows"),
        ({name: ["", ""] for name in TABLE.names}, "row 1 has no value in 'sex', where none may be missing"),
    ],
)
def test_what_it_is_not_for_is_refused_in_a_sentence(given: object, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        teacher().probabilities(given)  # type: ignore[arg-type]


def test_other_priors_are_a_shift_that_can_be_undone() -> None:
    one, equal, skewed = teacher(), np.full(4, 0.25), np.array([0.7, 0.1, 0.1, 0.1])
    turned = one.with_priors(equal, skewed)
    expected = one.probabilities(CODES).double() * torch.from_numpy(skewed)
    torch.testing.assert_close(
        turned.probabilities(CODES).double(), expected / expected.sum(1, keepdim=True), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(turned.with_priors(skewed, equal).weights, one.weights, atol=1e-6)


def test_a_dataset_brings_its_teacher_and_no_other(tmp_path: Path) -> None:
    labelled(teacher()).save(tmp_path)
    loaded = LabelledSet.load(tmp_path).teacher
    assert isinstance(loaded, TableTeacher) and np.array_equal(loaded.weights, teacher().weights)
    labelled(None).save(tmp_path)
    assert LabelledSet.load(tmp_path).teacher is None and TableTeacher.load(tmp_path) is None


def test_a_teacher_of_something_else_is_refused_beside_a_table(tmp_path: Path) -> None:
    labelled(None).save(tmp_path)
    other = TABLE.model_copy(update={"columns": TABLE.columns[::-1]})
    replace(teacher(), schema=other).save(tmp_path)
    with pytest.raises(DataError, match="of another table"):
        LabelledSet.load(tmp_path)
    Teacher(np.ones((4, 7), np.float32), "scatter28", "0" * 64, ImageEmbedding(6, 0, 1)).save(tmp_path)
    with pytest.raises(DataError, match="not a teacher of a dpdd table"):
        LabelledSet.load(tmp_path)
    LabelledSet(np.zeros((4, 1, 8, 8), np.uint8), np.arange(4), CLASSES).save(tmp_path)
    teacher().save(tmp_path)
    with pytest.raises(DataError, match="not a teacher of a dpdd dataset"):
        LabelledSet.load(tmp_path)


SHAPE = weights_shape(TABLE)


@pytest.mark.parametrize(
    ("weights", "about"),
    [
        (np.ones((SHAPE[0], SHAPE[1] - 1), np.float32), {}),
        (np.ones((SHAPE[0] + 1, SHAPE[1]), np.float32), {}),
        (np.ones(SHAPE[1], np.float32), {}),
        (np.ones(SHAPE, np.float64), {}),
        (np.full(SHAPE, np.inf, np.float32), {}),
        (np.ones(SHAPE, np.float32), {"schema": None}),
        (np.ones(SHAPE, np.float32), {"schema": {"label": "kind"}}),
        (np.ones(SHAPE, np.float32), None),
    ],
    ids=["narrow", "tall", "flat", "double", "infinite", "no schema", "half a schema", "no header"],
)
def test_weights_that_do_not_fit_are_refused(
    tmp_path: Path, weights: np.ndarray, about: dict[str, object] | None
) -> None:
    header = None
    if about is not None:
        header = {"dpdd": json.dumps({"schema": TABLE.model_dump(mode="json")} | about)}
    save_file({"weights": weights}, tmp_path / TEACHER, metadata=header)
    with pytest.raises(DataError, match="not a teacher"):
        TableTeacher.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\x80\x04pickle", b"\xff" * 100])
def test_files_that_are_no_teachers_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / TEACHER).write_bytes(content)
    with pytest.raises(DataError, match="not a teacher"):
        TableTeacher.load(tmp_path)


def test_a_set_of_a_table_with_many_cells_brings_its_teacher() -> None:
    """More than a teacher of images may have: what was planned must not be refused after it was paid for."""
    wide = TableSchema(
        label="kind",
        columns=(
            Categorical(name="kind", categories=("ant", "bee")),
            *(Numeric(name=f"column {at}", low=0, high=1, bins=4096) for at in range(2)),
        ),
    )
    weights = np.ones(weights_shape(wide), np.float32)
    arrays = {"rows": np.zeros((2, 2), np.float32), "labels": np.arange(2), "teacher": weights}

    def opened(more: np.ndarray) -> DistilledSet:
        make = partial(TableTeacher, schema=wide)
        return from_arrays(arrays | {"teacher": more}, wide.classes, wide.shape, 1, "north", make, wide)

    assert opened(weights).dataset.teacher is not None
    for odd in (np.ones((2, 8194), np.float32), weights[:, 1:], weights[:1], np.full_like(weights, np.inf)):
        with pytest.raises(IntegrityError, match="teacher"):
            opened(odd)
