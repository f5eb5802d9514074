"""`adult`: UCI's Adult (Census Income; Becker and Kohavi, 1996, CC BY 4.0), as a public table.

Who of the 1994 census earns more than $50,000 a year: 6 columns of numbers, 8 of categories, and `income`, the label.
The schema is typed in from documentation and from what anybody knows, not taken from the records. Categories are those
that UCI documents; the three columns in which it documents missing values may be empty (`?` in the file). Bounds and
bins are round numbers: ages of working people from 17 (UCI: only those over 16) to 90 by 5 years, 16 levels of
education, hours of a week by 5, amounts of up to five and four digits on a logarithmic scale on which 0 has a bin of
its own, census weights from thousands to millions on a logarithmic scale.

Records are those of `adult.data`, 32,561. A fifth of them, by a hash of each, is the public test data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpdd.common.data.table.schema import TableSchema
from dpdd.common.data.uci_files import UciFile

NAME = "adult"
TEST_SHARE = 0.2

FILE = UciFile(
    NAME,
    ("adult.data", "adult.csv"),
    cells=15,
    first_cell="age",
    advice="get adult.data from the UCI Machine Learning Repository (archive.ics.uci.edu, dataset 2, Adult)",
)

_COUNTRIES = (
    "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India Japan Greece South "
    "China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico Portugal Ireland France "
    "Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand Yugoslavia "
    "El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands"
)
_OCCUPATIONS = (
    "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners Machine-op-inspct "
    "Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv Armed-Forces"
)
_EDUCATION = (
    "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th Masters 1st-4th 10th "
    "Doctorate 5th-6th Preschool"
)
_MARITAL_STATUS = "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent Married-AF-spouse"
_WORKCLASS = "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked"


def _number(name: str, low: float, high: float, bins: int, scale: str = "linear") -> dict[str, Any]:
    return {"name": name, "type": "numeric", "low": low, "high": high, "bins": bins, "integer": True, "scale": scale}


def _category(name: str, categories: str, *, missing: bool = False) -> dict[str, Any]:
    return {"name": name, "type": "categorical", "categories": categories.split(), "missing": missing}


SCHEMA = TableSchema.model_validate(
    {
        "label": "income",
        "columns": [
            _number("age", 17, 90, 15),
            _category("workclass", _WORKCLASS, missing=True),
            _number("fnlwgt", 1_000, 2_000_000, 12, "log"),
            _category("education", _EDUCATION),
            _number("education-num", 1, 16, 16),
            _category("marital-status", _MARITAL_STATUS),
            _category("occupation", _OCCUPATIONS, missing=True),
            _category("relationship", "Wife Own-child Husband Not-in-family Other-relative Unmarried"),
            _category("race", "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black"),
            _category("sex", "Female Male"),
            _number("capital-gain", 0, 99_999, 20, "log"),
            _number("capital-loss", 0, 9_999, 20, "log"),
            _number("hours-per-week", 1, 100, 20),
            _category("native-country", _COUNTRIES, missing=True),
            _category("income", "<=50K >50K"),
        ],
    }
)


def columns(records: Sequence[Sequence[str]]) -> dict[str, list[str | None]]:
    """The columns of these records, as text; None where a value is missing. The label is also read as `>50K.`"""
    named: dict[str, list[str | None]] = {
        name: [None if record[at] == "?" else record[at] for record in records] for at, name in enumerate(SCHEMA.names)
    }
    named["income"] = [None if label is None else label.rstrip(".") for label in named["income"]]
    return named
