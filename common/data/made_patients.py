"""`made-patients`: a table of patients that never were, drawn in code by a public seed: the same on every machine.

Six columns of numbers and eight of categories, one of which, `readmitted`, is the label. It depends on the others much
as such things do: on age, long stays and many visits, on some diagnoses, and on smoking.

>>> table = raw("test")
>>> len(table), len(table["age"]), sorted(set(table["readmitted"]))
(14, 4000, ['no', 'yes'])
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpdd.common.data.labelled_rows import LabelledRows
from dpdd.common.data.table.encoding import encode_block
from dpdd.common.data.table.rows import rows_and_labels
from dpdd.common.data.table.schema import TableSchema
from dpdd.common.randomness import gaussians, uniforms

NAME = "made-patients"
RECORDS = {"train": 12_000, "test": 4_000}
SEED = 14

_DIAGNOSES = ("heart", "lung", "injury", "infection", "other")
_INSURANCES = ("public", "private", "none")
_DOSES = ("none", "low", "high")
_REFERRALS = ("emergency", "doctor", "self")

SCHEMA = TableSchema.model_validate(
    {
        "label": "readmitted",
        "columns": [
            {"name": "age", "type": "numeric", "low": 0, "high": 100, "bins": 20, "integer": True},
            {"name": "days", "type": "numeric", "low": 0, "high": 120, "bins": 12, "integer": True, "scale": "log"},
            {"name": "visits", "type": "numeric", "low": 0, "high": 40, "bins": 10, "integer": True, "scale": "log"},
            {"name": "weight", "type": "numeric", "low": 30, "high": 180, "bins": 16, "missing": True},
            {"name": "temperature", "type": "numeric", "low": 35, "high": 42, "bins": 14},
            {
                "name": "creatinine",
                "type": "numeric",
                "low": 0.2,
                "high": 12,
                "bins": 12,
                "scale": "log",
                "missing": True,
            },
            {"name": "sex", "type": "categorical", "categories": ["f", "m"]},
            {"name": "diagnosis", "type": "categorical", "categories": _DIAGNOSES, "other": "other"},
            {"name": "insurance", "type": "categorical", "categories": _INSURANCES},
            {"name": "smoker", "type": "categorical", "categories": ["no", "yes"], "missing": True},
            {"name": "insulin", "type": "categorical", "categories": _DOSES},
            {"name": "referral", "type": "categorical", "categories": _REFERRALS},
            {"name": "surgery", "type": "categorical", "categories": ["no", "yes"]},
            {"name": "readmitted", "type": "categorical", "categories": ["no", "yes"]},
        ],
    }
)


def raw(split: Literal["train", "test"]) -> dict[str, Sequence[Any]]:
    """The columns as a file would have them; None where a value is missing."""
    count = RECORDS[split]

    def normal(name: str) -> NDArray[np.float64]:
        return gaussians(SEED, f"{NAME} {split} {name}", (count,))

    def chance(name: str) -> NDArray[np.float64]:
        return uniforms(SEED, f"{NAME} {split} {name}", count)

    def one_of(names: Sequence[str], name: str, ends: Sequence[Any]) -> NDArray[Any]:
        """The name whose share of [0, 1] a draw falls into; `ends` are where shares end, the last is 1."""
        drawn, chosen = chance(name), np.zeros(count, np.int64)
        for end in ends:
            chosen += drawn >= end
        return np.array(names, dtype=object)[chosen]

    age = np.clip(np.where(chance("old") < 0.6, 68 + 12 * normal("age"), 38 + 16 * normal("age")), 0, 100).round()
    old = (age - 50) / 25
    sex = one_of(("f", "m"), "sex", [0.52])
    diagnosis = one_of(_DIAGNOSES, "diagnosis", [0.18 + 0.08 * old.clip(-1, 1), 0.40, 0.58, 0.78])
    serious = np.isin(diagnosis, ("heart", "lung"))
    smoker = chance("smoker") < 0.22 + 0.15 * (diagnosis == "lung")
    insulin = one_of(_DOSES, "insulin", [0.72 - 0.1 * old.clip(0, 2), 0.88])
    weight = 74 + 12 * (sex == "m") + 8 * (insulin != "none") + 13 * normal("weight")
    visits = np.floor(np.exp(0.4 + 0.5 * serious + 0.3 * old + 0.8 * normal("visits")))
    surgery = chance("surgery") < 0.25 + 0.3 * (diagnosis == "injury")
    days = np.floor(np.exp(1.0 + 0.4 * serious + 0.5 * surgery + 0.2 * old + 0.7 * normal("days")))
    temperature = 37.0 + 1.1 * (diagnosis == "infection") + 0.5 * normal("temperature")
    creatinine = np.exp(-0.1 + 0.3 * old + 0.25 * (insulin == "high") + 0.35 * normal("creatinine"))
    insurance = one_of(_INSURANCES, "insurance", [0.7, 0.93])
    referral = one_of(_REFERRALS, "referral", [0.3 + 0.2 * serious, 0.8])
    score = (
        -2.2
        + 0.8 * old
        + 1.2 * serious
        + 0.9 * np.log1p(visits)
        + 0.5 * np.log1p(days)
        + 0.8 * smoker
        + 0.7 * (insulin == "high")
        + 0.8 * (insurance == "none")
        - 0.9 * surgery
    )
    readmitted = chance("readmitted") < 1.0 / (1.0 + np.exp(-1.6 * (score - 1.2)))

    def yes(truths: NDArray[np.bool_]) -> list[str]:
        return np.where(truths, "yes", "no").tolist()

    def some_missing(values: list[Any], name: str, share: float) -> list[Any]:
        gone = chance(f"{name} missing") < share
        return [None if absent else value for value, absent in zip(values, gone, strict=True)]

    return {
        "age": age.astype(int).tolist(),
        "days": days.astype(int).tolist(),
        "visits": visits.astype(int).tolist(),
        "weight": some_missing(weight.round(1).tolist(), "weight", 0.08),
        "temperature": temperature.round(1).tolist(),
        "creatinine": some_missing(creatinine.round(2).tolist(), "creatinine", 0.15),
        "sex": sex.tolist(),
        "diagnosis": diagnosis.tolist(),
        "insurance": insurance.tolist(),
        "smoker": some_missing(yes(smoker), "smoker", 0.1),
        "insulin": insulin.tolist(),
        "referral": referral.tolist(),
        "surgery": yes(surgery),
        "readmitted": yes(readmitted),
    }


@lru_cache(maxsize=2)
def rows(split: Literal["train", "test"]) -> LabelledRows:
    """The records as codes."""
    features, labels = rows_and_labels(SCHEMA, encode_block(SCHEMA, raw(split)))
    return LabelledRows(features, labels, SCHEMA)
