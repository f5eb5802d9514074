"""Figures in README and docs come from a command: the file with its output exists, names it, and has them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")
_FIGURE = re.compile(r"(?<![\w.,-])\d+\.\d+(?![\w.,-]*\w)")
"""A decimal number on its own: no version, no part of a name."""
_NUMBER = re.compile(r"(?<![\w.])\d+\.\d+(?![.]?\d)")
"""The same in a file of results, where more may follow."""
_COLUMNS = ("hard", "teacher", "other")
"""Columns of README's table that hold what we measured; the others name what was run, or what others print."""


@dataclass(frozen=True)
class MeasuredCell:
    """A cell of README's table: its text, and the files of results that its row and itself link to."""

    row: str
    column: str
    text: str
    files: tuple[Path, ...]

    @property
    def figures(self) -> list[str]:
        return _FIGURE.findall(_without_links(self.text))


def rows_of(page: str, home: Path) -> Iterator[MeasuredCell]:
    """The cells of a table whose header has `hard`."""
    header: list[str] = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if "hard" in cells:
            header = cells
        elif not cells:
            header = []
        elif header and not set(line) <= set("|- "):
            of_row = linked(line, home)
            for column, cell in zip(header, cells, strict=True):
                if column in _COLUMNS:
                    yield MeasuredCell(cells[0], column, cell, tuple(of_row))


def linked(text: str, home: Path) -> list[Path]:
    """The files of results that a text links to."""
    found = [(home / link.partition("#")[0]).resolve() for _, link in _LINK.findall(text) if "://" not in link]
    return [path for path in found if path.parent == RESULTS]


def stated(text: str, home: Path) -> Iterator[tuple[str, Path]]:
    """Every figure inside a link to a file of results."""
    for words, link in _LINK.findall(text):
        for path in linked(f"[{words}]({link})", home):
            yield from ((figure, path) for figure in _FIGURE.findall(words))


def has(path: Path, figure: str) -> bool:
    """Whether the file has this number, or one with more digits that is rounded to it."""
    step = Decimal(1).scaleb(-len(figure.partition(".")[2]))
    return any(
        Decimal(found).quantize(step, ROUND_HALF_UP) == Decimal(figure)
        for found in _NUMBER.findall(path.read_text())
        if len(found.partition(".")[2]) >= len(figure.partition(".")[2])
    )


def _without_links(text: str) -> str:
    return _LINK.sub(lambda match: match[1], text)


def cells() -> list[MeasuredCell]:
    return list(rows_of((ROOT / "README.md").read_text(), ROOT))


def test_the_table_is_found() -> None:
    assert len(cells()) >= 18
    assert sum(len(cell.figures) for cell in cells()) >= 12


@pytest.mark.parametrize("cell", cells(), ids=lambda cell: f"{cell.row}-{cell.column}")
def test_a_figure_in_readme_is_in_a_file_that_its_row_links_to(cell: MeasuredCell) -> None:
    assert all(path.exists() for path in cell.files), f"{cell.row} links to a file that is not there"
    missing = [figure for figure in cell.figures if not any(has(path, figure) for path in cell.files)]
    names = ", ".join(path.name for path in cell.files)
    assert not missing, f"{cell.row}, {cell.column}: {', '.join(missing)} not in {names or 'any linked file'}"


def test_a_command_that_is_a_link_is_in_that_file() -> None:
    page = (ROOT / "README.md").read_text()
    named = [(words.strip("`"), ROOT / link) for words, link in _LINK.findall(page) if words.startswith("`dpdd-sim ")]
    assert len(named) >= 6
    wrong = [words for words, path in named if f"$ {words}" not in path.read_text()]
    assert not wrong, f"README names {', '.join(wrong)}, and the file behind the link does not"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_figure_that_is_a_link_is_in_that_file(page: Path) -> None:
    wrong = [
        f"{figure} ({path.name})" for figure, path in stated(page.read_text(), page.parent) if not has(path, figure)
    ]
    assert not wrong, f"{page.name}: {', '.join(wrong)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_pages_name_have_their_command(page: Path) -> None:
    """So that whoever doubts a figure can make it again; a log or a picture has its command in the page."""
    text = [path for path in linked(page.read_text(), page.parent) if path.suffix == ".txt"]
    silent = sorted({path.name for path in text if not _has_command(path)})
    assert not silent, f"{page.name} links to {', '.join(silent)}, of which nobody knows the command"


def _has_command(path: Path) -> bool:
    return any(line.startswith("$ ") for line in path.read_text().splitlines())


def test_the_checks_find_what_is_wrong(tmp_path: Path) -> None:
    page = "| data | hard | teacher |\n| --- | --- | --- |\n| [`run`](docs/results/quickstart.txt) | 12.34 | |\n"
    (cell, _) = rows_of(page, ROOT)
    assert cell.figures == ["12.34"] and [path.name for path in cell.files] == ["quickstart.txt"]
    assert not has(cell.files[0], "12.34")
    (tmp_path / "figures.txt").write_text("accuracy 168.04, 68.07, v1.66.0 and 9.1.")
    found = {
        figure
        for figure in ("68.07", "68.1", "168.0", "68.0", "8.0", "66.0", "9.10")
        if has(tmp_path / "figures.txt", figure)
    }
    assert found == {"68.07", "68.1", "168.0"}
    assert next(stated("[85.5 % at ε](docs/results/quickstart.txt)", ROOT))[0] == "85.5"
    assert _FIGURE.findall("0.1.0 and 3.11-slim and 79.8, 80.7 ± 0.5") == ["79.8", "80.7", "0.5"]
