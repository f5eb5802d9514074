"""Pages of docs/ with Python in them: what they say is what happens. Links of all pages lead somewhere."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from dpdd.server.cli import main as server
from tests.server.finished_runs import finished_run, images, table

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(path for pattern in ("*.md", "docs/*.md", "deploy/*.md") for path in ROOT.glob(pattern))
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_OUTSIDE = ("http://", "https://", "mailto:")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """To a file of the repository, and where a heading of a page is named, to that."""
    dead = []
    for link in _LINK.findall(_prose(page.read_text())):
        if link.startswith(_OUTSIDE):
            continue
        name, _, heading = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (heading and heading not in _headings(target)):
            dead.append(link)
    assert not dead, f"{page.name} links to {', '.join(dead)}"


def test_a_dead_link_is_found() -> None:
    assert _LINK.findall(_prose("see [a](b.md#c), ![d](e.png)\n```\n[f](g)\n```\nand `[h](i)`")) == ["b.md#c", "e.png"]
    assert _headings(DOCS / "coordinator.md") >= {"6-publish", "own-data", "1-make-the-folder"}


def _prose(page: str) -> str:
    """The page without its code."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"(?ms)^ *```.*?^ *```$", "", page))


def _headings(page: Path) -> set[str]:
    """What a link to a section of a page says after its #."""
    titles = re.findall(r"(?m)^#+ (.*)$", re.sub(r"(?ms)^```.*?^```$", "", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_using_the_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every example of the page runs in a folder with an exported dataset, and each section has one."""
    finished_run(tmp_path / "run", images(teacher=True))
    assert server(["export", str(tmp_path / "run"), "--out", str(tmp_path / "autumn-dataset")]) == 0
    finished_run(tmp_path / "table", table(teacher=True))
    assert server(["export", str(tmp_path / "table"), "--out", str(tmp_path / "patients")]) == 0
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    page = (DOCS / "using-the-dataset.md").read_text()
    test = doctest.DocTestParser().get_doctest(without_fences(page), {}, "using-the-dataset", None, 0)
    complaints: list[str] = []
    results = doctest.DocTestRunner().run(test, out=complaints.append)
    assert not complaints, "".join(complaints)
    assert results.attempted >= 15
    for section in page.split("\n## ")[1:]:
        assert ">>> " in section, section


def without_fences(page: str) -> str:
    """The page without the lines that open and close code: doctest would take the latter for output."""
    return "\n".join("" if line.startswith("```") else line for line in page.splitlines())
