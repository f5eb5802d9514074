"""What a finished run prints, for `dpdd-sim` and `dpdd-server` alike: guarantees, scores, where the product is, one
line of Python that loads it.

>>> print(loading_line({"images": 500}, Path("runs/mine/dataset")))
from dpdd.common.synthesis.labelled_set import LabelledSet; dataset = LabelledSet.load("runs/mine/dataset")
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpdd.common.cli import table
from dpdd.server.report.also import also_lines
from dpdd.server.report.card_text import budget_cells
from dpdd.server.report.comparison import MARGINALS, distances_table
from dpdd.server.report.cross_table import cross_table
from dpdd.server.report.image_comparison import KEY as IMAGE_FIDELITY
from dpdd.server.report.image_comparison import image_distances_table
from dpdd.server.report.joining import implausible_lines, influence_table, lost_in_words
from dpdd.server.report.pool import pool_line
from dpdd.server.report.product import in_words
from dpdd.server.report.rounds import rounds_text
from dpdd.server.report.run_page import REPORT
from dpdd.server.report.scores import tables


def summary(metrics: Mapping[str, Any], folder: Path) -> str:
    """What `metrics.json` of the run in `folder` says, for people."""
    rows = [[*budget_cells(row), row["accountant"]] for row in metrics["privacy"]]
    lines = ["", table(["silo", "ε", "δ", "accountant"], rows), ""]
    if len(metrics.get("influence", ())) > 1:
        lines += [influence_table(metrics["influence"]), ""]
    lines += [f"implausible: {line}" for line in implausible_lines(metrics.get("implausible_releases", ()))]
    if "rounds" in metrics:
        lines += [rounds_text(metrics["rounds"]), ""]
    if metrics.get("lost_in_noise"):
        lines.append(lost_in_words(metrics["lost_in_noise"]))
    lines += [line for scores in tables(metrics) for line in (scores, "")]
    if "fidelity" in metrics:
        lines += [distances_table(metrics["fidelity"]), ""]
    if IMAGE_FIDELITY in metrics:
        lines += [image_distances_table(metrics[IMAGE_FIDELITY]), ""]
    lines += also_lines(metrics, folder)
    lines += [pool_line(metrics["pool"]), ""] if "pool" in metrics else []
    if across := cross_table(metrics):
        lines += [across, ""]
    if not all(row["releasable"] for row in metrics["privacy"]):
        lines.append("This was a simulation with repeatable or no noise: it protects nobody.")
    if "description" in metrics:
        path = folder / "dataset" / metrics["dataset"]["file"]
        lines += [
            metrics["description"]["columns_toml"],
            f"these columns are in {path}: put them into the scenario and every silo.toml, as they are or corrected",
            f"what it promises, and how to check it: {folder / 'CARD.md'}",
        ]
        return "\n".join(lines)
    picture = "preview.png" if "images" in metrics["dataset"] else MARGINALS if "rows" in metrics["dataset"] else ""
    look = f" (look at {picture})" if picture else ""
    lines += [
        f"{in_words(metrics['dataset'])}: {folder / 'dataset'}{look}",
        f"what it promises, and how to check it: {folder / 'CARD.md'}",
        *([f"the same for people, with pictures: {folder / REPORT}"] if (folder / REPORT).exists() else []),
        "to load it in Python:",
        f"  {loading_line(metrics['dataset'], folder / 'dataset')}",
    ]
    return "\n".join(lines)


def loading_line(facts: Mapping[str, Any], folder: Path) -> str:
    """One line of Python that loads the product in `folder`, of which `facts` is what its card says."""
    path = json.dumps(str(folder), ensure_ascii=False)
    if "model" in facts:
        return f"from dpdd.common.synthesis.product import ReleasedModel; model = ReleasedModel.load({path})"
    return f"from dpdd.common.synthesis.labelled_set import LabelledSet; dataset = LabelledSet.load({path})"
