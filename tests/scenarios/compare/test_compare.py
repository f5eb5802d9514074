"""The page and the figures of a comparison, and the command from end to end."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from dpdd.scenarios.cli import main as sim
from dpdd.scenarios.compare.cells import Ended
from dpdd.scenarios.compare.command import summary
from dpdd.scenarios.compare.page import compare_page
from dpdd.scenarios.compare.published import published
from dpdd.scenarios.compare.results import as_csv, as_json, results_of
from tests.scenarios.compare.grids import finished
from tests.scenarios.tiny_runs import tiny_scenario
from tests.server.finished_runs import table
from tests.server.report.reported_runs import check_document

TYPED = "dpdd-sim compare quickstart --out runs/x"


def test_rows_are_means_and_deviations_over_seeds(tmp_path: Path) -> None:
    cells = finished(tmp_path, epsilon=[1.0, 10.0], seeds=2)
    one, ten = results_of(cells).rows
    assert list(one.scores) == ["convnet-dd", "convnet"]  # hard labels by the literature's protocol first
    for row, mean in ((one, 0.51), (ten, 0.52)):  # seeds of a row are two cells apart
        assert row.scores["convnet-dd"].mean == pytest.approx(mean)
        assert row.scores["convnet-dd"].deviation == pytest.approx(0.02 / 2**0.5)
    assert one.seconds == 11.0 and one.bytes_per_silo > 0


def test_the_page_has_everything_of_every_row(tmp_path: Path) -> None:
    cells = finished(tmp_path, epsilon=[1.0, float("inf")], seeds=2)
    document = compare_page(results_of(cells), cells, "mine", TYPED)
    text = check_document(document).text
    assert "51.0 ± 1.4" in text and "protect nobody" in text
    assert document.count("data:image/png") == 2  # the first seed of each row
    for cell in cells.cells:
        assert cells.command_line(cell) in text
        assert f"{TYPED} --only {cell.row}" in text
    assert "Dosser's paper, table 1" in text and "81.6 ± 0.1" in text
    assert "from 50 % to at most" in text
    assert results_of(cells).fingerprint in text


def test_a_failing_cell_is_a_row_in_red_and_in_words(tmp_path: Path) -> None:
    cells = finished(tmp_path, epsilon=[1.0, 10.0, 20.0])
    cells.ended[cells.cells[0].key] = Ended(failure="<b>the scanner</b> is on fire")
    del cells.ended[cells.cells[2].key]
    results = results_of(cells)
    page = check_document(compare_page(results, cells, "mine", TYPED))
    assert "Failed, seed 0: <b>the scanner</b> is on fire" in page.text and "not run yet" in page.text
    assert [each.get("class") for each in page.named("tbody")][:3] == ["failed", None, None]
    assert results.counts == (1, 1, 1)
    assert "failed: quickstart.eps-1" in summary(results, tmp_path)
    failed, *learners = csv.DictReader(io.StringIO(as_csv(results)))
    assert failed["failure"].startswith("<b>")
    assert [each["learner"] for each in learners] == ["convnet", "convnet-dd"]


def test_a_grid_where_nothing_ran_has_a_page(tmp_path: Path) -> None:
    cells = finished(tmp_path)
    cells.ended.clear()
    text = check_document(compare_page(results_of(cells), cells, "mine", TYPED)).text
    assert "There is nothing to draw yet." in text and "No cell has a picture yet." in text


def test_tables_and_audits_have_their_place(tmp_path: Path) -> None:
    cells = finished(tmp_path, table())
    (cells.home(cells.cells[0]) / "audit.json").write_text(json.dumps({"attack": {"epsilon_bound": 0.36}}))
    results = results_of(cells)
    text = check_document(compare_page(results, cells, "mine", TYPED)).text
    assert "Audits" in text and "attack: epsilon bound" in text and "0.36" in text
    assert as_json(results, cells)["cells"][0]["audit"] == {"attack": {"epsilon_bound": 0.36}}


def test_published_figures_have_their_source() -> None:
    found = published("fashion-slice", {10})
    assert all(each.source and each.images_per_class == 10 for each in found)
    printed = {(each.method, each.epsilon): each.printed for each in found}
    assert printed["Dosser", 1.0] == "81.6 ± 0.1" and printed["DP-KIP FC-NTK", 10.0] == "89.1"
    geng = {(each.method, each.epsilon): each.printed for each in published("cifar10", {50})}
    assert geng["DP-GENG", 1.0] == "55.9" and geng["Dosser with PEA", 1.0] == "52.3 ± 0.6"
    assert published("made-patients", {10}) == published(None, {10}) == []


def test_the_command_from_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One cell that runs, and one that cannot; then the first alone, which does not run again."""
    (tmp_path / "tiny.toml").write_text(tiny_scenario(silos=1, steps=1))
    lines = '[{name = "ill", scenario = "tiny.toml", set = {"method.settings.features" = -1}}, "tiny.toml"]'
    (tmp_path / "grid.toml").write_text(f"scenarios = {lines}\n")
    out = tmp_path / "out"
    command = ["compare", str(tmp_path / "grid.toml"), "--out", str(out), "--jobs", "2"]
    assert sim(command) == 1
    said = capsys.readouterr()
    assert "1 of 2 cells failed" in said.err and "features" in said.out
    results = json.loads((out / "results.json").read_text())
    assert [row["finished"] for row in results["rows"]] == [0, 1]
    assert "greater than" in results["rows"][0]["failed"][0]["why"]
    (cell,) = (each for each in results["cells"] if "failure" not in each)
    assert cell["privacy"][0]["epsilon"] == 10.0 and cell["bytes_by_silo"]["north"] > 0
    assert (out / "cells" / "tiny.eps-10.silos-1.iid.seed-0" / "report.html").exists()
    check_document((out / "report.html").read_text())
    assert sim([*command, "--only", "tiny.eps-10.silos-1.iid", "--json"]) == 1  # the other one is still not there
    assert json.loads(capsys.readouterr().out)["rows"][1]["cpu_seconds"] == results["rows"][1]["cpu_seconds"]
    assert sim([*command, "--only", "tiny"]) == 3
    assert "--only names 'tiny'" in capsys.readouterr().err
