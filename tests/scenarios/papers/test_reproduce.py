"""`dpdd-sim reproduce`: every cell is a valid scenario, runs are kept, releases are used again where they may be."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import pytest

from dpdd.common.cli import Commands
from dpdd.common.privacy.accounting import guarantee
from dpdd.common.privacy.events import PoissonGaussian
from dpdd.scenarios.papers import dosser as paper_dosser
from dpdd.scenarios.papers import reproduce
from dpdd.scenarios.papers.base import Cell, Paper
from dpdd.scenarios.simulator import simulate
from dpdd.server.run.scenario import load_scenario

TINY = [
    *("--seeds=1", "--steps=2", "--width=4", "--quiet", "--rows", "dosser", "dosser-pea"),
    *("--images-per-class", "1", "2", "--synthesis", "steps=2"),
    *("--set", "draws=1", "networks=1", "width=4", "rate=1.0", "auxiliary_images=20", "dimensions=2"),
]


def command(*arguments: str) -> int:
    commands = Commands("dpdd-sim", "test")
    reproduce.add_to(commands)
    return commands.main(["reproduce", *arguments])


def cells_of(paper: Paper, arguments: list[str]) -> list[Cell]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dataset", default="fashion-slice")
    paper.add_options(parser)
    return paper.cells(parser.parse_args(arguments))


@pytest.mark.parametrize(
    ("paper", "arguments", "count"),
    [("sps", [], 8), ("dosser", [], 8), ("dosser", ["--epsilon", "1", "10", "--images-per-class", "10", "50"], 30)],
)
def test_every_cell_is_a_valid_scenario_of_its_own(
    tmp_path: Path, paper: str, arguments: list[str], count: int
) -> None:
    cells = cells_of(reproduce.PAPERS[paper], arguments)
    assert len(cells) == len({cell.key for cell in cells}) == count
    for cell in cells:
        path = tmp_path / "cell.toml"
        path.write_text(cell.scenario.replace("{seed}", "5"))
        assert load_scenario(str(path)).seed == 5


def test_cells_with_the_same_request_use_the_same_releases() -> None:
    cells = {
        cell.key: cell for cell in cells_of(paper_dosser, ["--epsilon", "1", "10", "--images-per-class", "10", "50"])
    }
    assert cells["dosser-1-10"].like == "" and cells["dosser-10-10"].like == ""
    assert cells["dosser-1-50"].like == cells["dosser-pea-1-10"].like == cells["dosser-pea-1-50"].like == "dosser-1-10"
    assert cells["dosser-pea-10-50"].like == "dosser-10-10" and cells["dm-inf-50"].like == "dm-inf-10"
    alone = cells_of(paper_dosser, ["--rows", "dosser-pea"])
    assert [cell.like for cell in alone] == [""]


def test_runs_are_kept_and_share_releases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = f"--out={tmp_path / 'runs'}"
    assert command("dosser", *TINY, out) == 0
    printed = capsys.readouterr().out
    releases = {
        key: [path.read_bytes() for path in (tmp_path / "runs").glob(f"{key}-0/silos/*/state/outbox/*.release")]
        for key in ("dosser-1-1", "dosser-1-2", "dosser-pea-1-1", "dosser-pea-1-2")
    }
    assert len(releases["dosser-1-1"]) == 1
    assert all(sent == releases["dosser-1-1"] for sent in releases.values())
    rows = [line.split() for line in printed.splitlines() if line.startswith("Dosser  ")]
    row = next(row for row in rows if len(row) == 6)
    assert row[1] == "1" and row[4] == f"{len(releases['dosser-1-1'][0]) / 1000:,.1f}"
    assert "81.6 ± 0.1" in printed and "6.7" in printed and "protects nobody" in printed

    def not_again(*_: Any, **__: Any) -> None:
        raise AssertionError("this was run before")

    monkeypatch.setattr(simulate, "run", not_again)
    assert command("dosser", *TINY, out) == 0
    assert capsys.readouterr().out == printed


def test_the_report_says_where_the_papers_epsilon_holds_and_where_not() -> None:
    rate, sigma, draws, noises = 0.01, 4.2969, 10_000, 20
    assert 0.8 < guarantee(PoissonGaussian(sigma, rate, draws), 1e-5).epsilon < 1.0  # the same noise at every visit
    redrawn = guarantee(PoissonGaussian(sigma / math.sqrt(noises), rate, draws), 1e-5).epsilon
    caveat = " ".join(paper_dosser.CAVEAT.split())
    assert f"{redrawn:.1f}" == "6.7" and "With one image per class or without augmentation" in caveat
    assert "the accounting stands" in caveat and "not 1" not in caveat
    assert all(word in caveat for word in ("enumerated", "fixed size", "class sizes are taken for public"))


def test_odd_settings_are_refused_in_a_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert command("dosser", "--quiet", "--set", "draws", f"--out={tmp_path}") not in (0, 70)
    assert "KEY=VALUE" in capsys.readouterr().err
