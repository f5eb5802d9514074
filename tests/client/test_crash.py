"""`kill -9` at 200 random instants of a release: exactly one release, paid exactly once, whatever happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STEPS = ("reserving", "reading", "adding noise", "writing", "committing")


@pytest.mark.timeout(600)
def test_two_hundred_kills(tmp_path: Path) -> None:
    """Kills come at random; where they hardly met a step (the machine decides how long steps are), there are more."""
    struck: Counter[str] = Counter()
    for turn in range(3):
        struck.update(_kills(tmp_path / str(turn), 200))
        if all(struck[step] >= 3 for step in STEPS):
            return
    raise AssertionError(f"a step was hardly struck: {dict(struck)}")


def _kills(folder: Path, count: int) -> dict[str, int]:
    """How often each step was struck; everything was in order after every kill."""
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    seed = int.from_bytes(os.urandom(4), "big")
    finished = subprocess.run(
        [sys.executable, "-m", "tests.client.crash_trials", str(folder), str(count), str(seed)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
    )
    assert finished.returncode == 0, f"seed {seed}\n{finished.stderr[-3000:]}"
    report = json.loads(finished.stdout.splitlines()[-1])
    print(report)
    assert report["kills"] == count
    struck: dict[str, int] = report["struck"]
    return struck
