"""Tests import each other's helpers as `tests.…`, whatever way pytest was started, and leave the user's folders be."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from dpdd.common.data import benchmarks
from dpdd.common.data.labelled_images import LabelledImages

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def pytest_configure(config: pytest.Config) -> None:
    """One cache and one state folder for the session: workers of xdist and processes that tests start have them too."""
    if not hasattr(config, "workerinput"):
        folder = tempfile.mkdtemp(prefix="dpdd-")
        os.environ["XDG_CACHE_HOME"] = str(Path(folder, "cache"))
        os.environ["XDG_STATE_HOME"] = str(Path(folder, "state"))
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


@pytest.fixture
def few_test_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """A benchmark's test data are its first hundred images: for runs that are about something else than accuracy."""
    whole = benchmarks.load

    def load(name: str, split: benchmarks.Split) -> LabelledImages:
        found = whole(name, split)
        return found if split == "train" else LabelledImages(found.images[:100], found.labels[:100], found.classes)

    monkeypatch.setattr(benchmarks, "load", load)
