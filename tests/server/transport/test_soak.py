"""A handful of kills of the soak (`soak.py` does as many as you like)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.timeout(300)
def test_a_handful_of_kills(tmp_path: Path) -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "tests.server.transport.soak", "--kills", "8", "--folder", str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    report = json.loads(finished.stdout.splitlines()[-1])
    assert report["kills"] == 8, report
