"""Run a command where no network is but loopback, and nothing that it starts outlives it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
_NAMESPACE = ["unshare", "--map-root-user", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
_LOOPBACK = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


def alone(command: Sequence[str], seconds: float) -> str:
    """What `python -m command…` said, in namespaces of its own; skips the test where there can be none."""
    inside = [*_NAMESPACE, *_LOOPBACK]
    try:
        possible = subprocess.run([*inside, "true"], capture_output=True, timeout=30).returncode == 0
    except FileNotFoundError:
        possible = False
    if not possible:
        pytest.skip("needs a network namespace (unshare, ip)")
    done = subprocess.run(
        [*inside, sys.executable, "-m", *command],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
