"""Rows of a public table: checked when they are made; the made one is the same everywhere."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from dpdd.common.data import made_patients
from dpdd.common.data.labelled_rows import LabelledRows
from dpdd.common.data.table.columns import Categorical
from dpdd.common.data.table.encoding import encode_block
from dpdd.common.errors import DataError


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rows": np.zeros((4000, 12), np.float32)}, "rows must be float32 N, 13"),
        ({"rows": np.zeros((4000, 13), np.float64)}, "rows must be float32"),
        ({"rows": np.full((4000, 13), 99, np.float32)}, "no code of its column"),
        ({"labels": np.full(4000, 2)}, "no code of its column"),
        ({"labels": np.zeros(3999, np.int64)}, "as many int64 labels"),
    ],
)
def test_what_is_no_table_is_refused(change: dict[str, np.ndarray], sentence: str) -> None:
    test = made_patients.rows("test")
    with pytest.raises(DataError, match=sentence):
        LabelledRows(change.get("rows", test.rows), change.get("labels", test.labels), test.schema)


def test_the_made_table_is_the_same_on_every_machine() -> None:
    table = made_patients.raw("test")
    text = repr([table[name][:50] for name in ("sex", "diagnosis", "insurance", "smoker", "readmitted")])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "992a6e5f450f7279"
    schema = made_patients.SCHEMA
    numbers = sum(not isinstance(column, Categorical) for column in schema.columns)
    assert (len(schema.columns), numbers) == (14, 6)
    assert len(encode_block(schema, table)) == len(table["age"]) == made_patients.RECORDS["test"]
    share = made_patients.rows("train").labels.mean()
    assert 0.2 < share < 0.4
