"""Tests import each other's helpers as `tests.…`, whatever way pytest was started; and leave the user's cache alone."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def pytest_configure(config: pytest.Config) -> None:
    """One cache for the session: workers of xdist and processes that tests start have it from here."""
    if not hasattr(config, "workerinput"):
        folder = tempfile.mkdtemp(prefix="dpdd-cache-")
        os.environ["XDG_CACHE_HOME"] = folder
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
