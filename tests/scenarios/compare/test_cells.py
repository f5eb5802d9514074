"""Running cells: what is finished is reused, what failed stops nobody and is tried again, and no process stays."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from dpdd.common.errors import ConfigError
from dpdd.scenarios.compare import cells as running
from dpdd.scenarios.compare.cells import Cells, Ended, start_over
from dpdd.scenarios.compare.command import estimate
from dpdd.scenarios.compare.grid import grid_of

RUNS = """
import json, os, pathlib, sys
file, home = pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[4])
assert os.environ["OMP_NUM_THREADS"] == "1" and sys.argv[1] == "run"
home.mkdir(exist_ok=True)
with (home / "times.txt").open("a") as times:
    times.write("once ")
if "seed = 1" in file.read_text() and not (home.parent / "well").exists():
    print("dpdd-sim: error: the scanner is on fire")
    sys.exit(3)
(home / "metrics.json").write_text(json.dumps({}))
"""


@pytest.fixture
def pretended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Cells run a script that pretends; seed 1 fails until the file `well` is there."""
    (tmp_path / "pretend.py").write_text(RUNS)
    monkeypatch.setattr(running, "PROGRAM", (sys.executable, str(tmp_path / "pretend.py")))
    return tmp_path / "out"


def cells_in(folder: Path, **values: Any) -> Cells:
    grid = grid_of({"scenarios": ["quickstart"], "epsilon": [1.0, 2.0], "seeds": 2, **values}, "the grid")
    cells = Cells(folder, grid.cells())
    cells.prepare()
    return cells


def run(cells: Cells, jobs: int = 2) -> list[str]:
    told: list[str] = []
    cells.run(jobs, lambda cell, ended: told.append(f"{cell.seed}: {ended.failure}"))
    return sorted(told)


def times(cells: Cells) -> list[int]:
    return [len((cells.home(cell) / "times.txt").read_text().split()) for cell in cells.cells]


def test_one_that_fails_stops_no_other_and_is_tried_again(pretended: Path) -> None:
    first = cells_in(pretended)
    assert run(first) == ["0: None", "0: None", *["1: the scanner is on fire"] * 2]
    again = cells_in(pretended)
    assert sorted(str(ended.failure) for ended in again.ended.values()) == [
        "None",
        "None",
        *["the scanner is on fire"] * 2,
    ]
    again.forget_failures()
    assert sorted(cell.split(".")[-1] for cell in again.ended) == ["seed-0", "seed-0"]
    (pretended / "cells" / "well").touch()
    assert run(again, jobs=1) == ["1: None", "1: None"]
    assert times(again) == [1, 1, 2, 2]  # what was finished did not run again
    assert run(cells_in(pretended)) == []


def test_a_grid_may_grow_but_a_cell_keeps_its_settings(pretended: Path) -> None:
    run(cells_in(pretended, seeds=1))
    larger = cells_in(pretended, epsilon=[1.0, 2.0, 3.0], seeds=1)
    assert len(larger.ended) == 2
    assert run(larger) == ["0: None"]
    with pytest.raises(ConfigError, match="other settings than the grid has now"):
        cells_in(pretended, set={"synthesis.images_per_class": 3})


def test_a_note_of_another_file_or_without_a_run_does_not_count(pretended: Path) -> None:
    cells = cells_in(pretended, seeds=1)
    run(cells)
    first, second = cells.cells
    note = pretended / "cells" / f"{first.key}.done.json"
    note.write_text(json.dumps({**json.loads(note.read_text()), "scenario_sha256": "another"}))
    (cells.home(second) / "metrics.json").unlink()
    assert cells_in(pretended, seeds=1).ended == {}


def test_an_interruption_ends_every_process(pretended: Path, tmp_path: Path) -> None:
    (tmp_path / "pretend.py").write_text(
        "import os, pathlib, sys, time\n"
        "pathlib.Path(sys.argv[4] + '.pid').write_text(str(os.getpid()))\n"
        "time.sleep(0 if 'eps-1.' in sys.argv[4] else 600)\n"
        "pathlib.Path(sys.argv[4]).mkdir(exist_ok=True)\n"
        "(pathlib.Path(sys.argv[4]) / 'metrics.json').write_text('{}')\n"
    )
    cells = cells_in(pretended, seeds=1)
    sleeper = pretended / "cells" / f"{cells.cells[1].key}.pid"

    def interrupted(_cell: object, _ended: Ended) -> None:
        while not sleeper.exists() or not sleeper.read_text():
            pass
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cells.run(2, interrupted)
    with pytest.raises(ProcessLookupError):
        os.kill(int(sleeper.read_text()), 0)
    assert [*cells.ended] == [*cells_in(pretended, seeds=1).ended] == [cells.cells[0].key]  # it has not failed


def test_what_is_no_comparison_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="does not look like"):
        start_over(tmp_path)
    assert (tmp_path / "thesis.txt").exists()
    start_over(tmp_path / "nothing")


def test_the_time_left_is_that_of_like_cells() -> None:
    cells = grid_of({"scenarios": ["quickstart"], "epsilon": [1.0, 2.0], "seeds": 3}, "the grid").cells()
    assert estimate(cells, cells, {}, 2) is None
    ended = {cells[0].key: Ended(100.0), cells[1].key: Ended(20.0), cells[2].key: Ended(failure="no")}
    left = [cells[3], cells[4]]  # one of each row
    assert estimate(left, cells, ended, 1) == 120.0
    assert estimate(left, cells, ended, 8) == 60.0
