"""Pages of docs/ with Python in them: what they say is what happens."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from dpdd.server.cli import main as server
from tests.server.finished_runs import finished_run, images, table

DOCS = Path(__file__).resolve().parent.parent / "docs"


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
