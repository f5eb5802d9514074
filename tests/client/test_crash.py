"""`kill -9` at 200 random instants of a release: exactly one release, paid exactly once, whatever happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(600)
def test_two_hundred_kills(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    seed = int.from_bytes(os.urandom(4), "big")
    finished = subprocess.run(
        [sys.executable, "-m", "tests.client.crash_trials", str(tmp_path), "200", str(seed)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    assert finished.returncode == 0, f"seed {seed}\n{finished.stderr[-3000:]}"
    report = json.loads(finished.stdout.splitlines()[-1])
    print(report)
    assert report["kills"] == 200
    for step in ("reserving", "reading", "adding noise", "writing", "committing"):
        assert report["struck"].get(step, 0) >= 3, f"seed {seed}: step {step!r} was hardly struck: {report}"
