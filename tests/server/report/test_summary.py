"""What a finished run prints: the same for both commands, with a line of Python that really loads the product."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpdd.common.models.evaluation_convnet import EvaluationConvNet
from dpdd.common.synthesis.product import Product, ReleasedModel
from dpdd.server.report.summary import loading_line, summary
from tests.server.finished_runs import CLASSES, SCORES, images, table

FIDELITY = {
    "rows": 5,
    "real_rows": 40,
    "one_way": 0.1,
    "two_way": 0.2,
    "correlation_difference": 0.1,
    "coverage": 0.9,
    "columns": {"age": 0.1},
}
MODEL = ReleasedModel.of(EvaluationConvNet((1, 8, 8), 2, 4), CLASSES, (1, 8, 8), width=4)


def metrics(product: Product, *, releasable: bool = True, **scores: Any) -> dict[str, Any]:
    row = {"silo": "north", "epsilon": 1.0, "delta": 1e-5, "accountant": "analytic Gaussian", "releasable": releasable}
    return {"accuracy": {}, **scores, "privacy": [row], "dataset": product.facts}


def test_guarantees_scores_and_where_everything_is() -> None:
    text = summary(metrics(images(), **SCORES), Path("runs/mine"))
    for words in (
        "north  1  1e-05  analytic Gaussian",
        "80.0 ± 1.0",
        "4 synthetic images: runs/mine/dataset (look at preview.png)",
        "runs/mine/CARD.md",
        'LabelledSet.load("runs/mine/dataset")',
    ):
        assert words in text
    assert "protects nobody" not in text


def test_a_simulation_without_protection_says_so() -> None:
    assert "it protects nobody" in summary(metrics(images(), releasable=False), Path("x"))


def test_tables_have_marginals_to_look_at_and_distances_where_there_are_test_rows() -> None:
    text = summary(metrics(table()), Path("x"))
    assert "5 synthetic rows: x/dataset (look at marginals.png)\n" in text
    assert "learner" not in text and "distance" not in text
    assert "distance to 40 test rows" in summary(metrics(table(), fidelity=FIDELITY), Path("x"))


@pytest.mark.parametrize("folder", ["plain", 'with "quotes" and spaces', "größe", "back\\slash"])
@pytest.mark.parametrize("product", [images(), table(), MODEL], ids=["images", "table", "model"])
def test_the_line_loads_the_product(tmp_path: Path, product: Product, folder: str) -> None:
    product.save(tmp_path / folder)
    names: dict[str, Any] = {}
    exec(loading_line(product.facts, tmp_path / folder), names)
    if isinstance(product, ReleasedModel):
        assert names["model"].classes == CLASSES
    else:
        np.testing.assert_array_equal(names["dataset"].records, product.records)
