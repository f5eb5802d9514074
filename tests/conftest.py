"""Tests import each other's helpers as `tests.…`, whatever way pytest was started, and leave the user's folders be."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def pytest_configure(config: pytest.Config) -> None:
    """One cache and one state folder for the session: workers of xdist and processes that tests start have them too."""
    if not hasattr(config, "workerinput"):
        folder = tempfile.mkdtemp(prefix="dpdd-")
        os.environ["XDG_CACHE_HOME"] = str(Path(folder, "cache"))
        os.environ["XDG_STATE_HOME"] = str(Path(folder, "state"))
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
