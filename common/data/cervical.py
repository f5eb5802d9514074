"""`cervical`: UCI's Cervical Cancer (Risk Factors; Fernandes and others, 2017, CC BY 4.0), as a public table.

858 women of a hospital in Caracas: what they were asked, what is in their records, and `Biopsy`, the label. Three other
examinations (Hinselmann, Schiller, Cytology), which come before a biopsy, are columns of `cervical`, as in the
papers that publish figures (DP-MERF's code, and DP-KIP's 35 columns): they nearly say what the biopsy will find.
`cervical-risk-factors` is the same without them.

The schema is typed in from documentation and from what anybody knows, not taken from the records. Answers may be
missing, as UCI documents (`?` in the file); ages, diagnoses and examinations are in the hospital's own records, and may
not. Numbers have round bounds: ages from 10 to 89, up to 30 partners, 15 pregnancies, 12 listed diseases, 60 years.

A third of the records, by a hash of each, is the public test data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdd.common.data.table import cells
from dpdd.common.data.table.schema import TableSchema
from dpdd.common.data.uci_files import UciFile

NAME, WITHOUT_EXAMINATIONS = "cervical", "cervical-risk-factors"
TEST_SHARE = 1 / 3

FILE = UciFile(
    NAME,
    ("risk_factors_cervical_cancer.csv", "cervical.csv"),
    cells=36,
    first_cell="Age",
    advice="get risk_factors_cervical_cancer.csv from the UCI Machine Learning Repository (archive.ics.uci.edu, "
    "dataset 383, Cervical Cancer (Risk Factors))",
)

EXAMINATIONS = ("Hinselmann", "Schiller", "Cytology")
_DISEASES = (
    "condylomatosis",
    "cervical condylomatosis",
    "vaginal condylomatosis",
    "vulvo-perineal condylomatosis",
    "syphilis",
    "pelvic inflammatory disease",
    "genital herpes",
    "molluscum contagiosum",
    "AIDS",
    "HIV",
    "Hepatitis B",
    "HPV",
)


def _count(name: str, low: float, high: float, bins: int, scale: str = "linear", *, missing: bool = True) -> Any:
    about = {"low": low, "high": high, "bins": bins, "integer": True, "scale": scale, "missing": missing}
    return {"name": name, "type": "numeric", **about}


def _years(name: str) -> Any:
    """Years, or packs a year, of something that most people do not do for long."""
    return {"name": name, "type": "numeric", "low": 0, "high": 60, "bins": 8, "scale": "log", "missing": True}


def _yes_or_no(name: str, *, missing: bool = True) -> Any:
    return {"name": name, "type": "categorical", "categories": ["no", "yes"], "missing": missing}


_COLUMNS = [
    _count("Age", 10, 89, 16, missing=False),
    _count("Number of sexual partners", 0, 30, 8, "log"),
    _count("First sexual intercourse", 8, 39, 16),
    _count("Num of pregnancies", 0, 15, 16),
    _yes_or_no("Smokes"),
    _years("Smokes (years)"),
    _years("Smokes (packs/year)"),
    _yes_or_no("Hormonal Contraceptives"),
    _years("Hormonal Contraceptives (years)"),
    _yes_or_no("IUD"),
    _years("IUD (years)"),
    _yes_or_no("STDs"),
    _count("STDs (number)", 0, 12, 13),
    *(_yes_or_no(f"STDs:{name}") for name in _DISEASES),
    _count("STDs: Number of diagnosis", 0, 12, 13, missing=False),
    _count("STDs: Time since first diagnosis", 0, 60, 8, "log"),
    _count("STDs: Time since last diagnosis", 0, 60, 8, "log"),
    *(_yes_or_no(name, missing=False) for name in ("Dx:Cancer", "Dx:CIN", "Dx:HPV", "Dx", *EXAMINATIONS, "Biopsy")),
]

SCHEMA = TableSchema.model_validate({"label": "Biopsy", "columns": _COLUMNS})
RISK_FACTORS = TableSchema.model_validate(
    {"label": "Biopsy", "columns": [column for column in _COLUMNS if column["name"] not in EXAMINATIONS]}
)


def columns(records: Sequence[Sequence[str]]) -> dict[str, Any]:
    """The columns of these records: numbers, NaN where one is missing; `no` and `yes` for 0 and 1."""
    return {
        column.name: _answers(records, at) if hasattr(column, "categories") else _numbers(records, at)
        for at, column in enumerate(SCHEMA.columns)
    }


def _numbers(records: Sequence[Sequence[str]], at: int) -> NDArray[np.float64]:
    return np.array([cells.number(record[at]) for record in records], dtype=np.float64)


def _answers(records: Sequence[Sequence[str]], at: int) -> list[str | None]:
    return [{0.0: "no", 1.0: "yes"}.get(number) for number in _numbers(records, at).tolist()]
