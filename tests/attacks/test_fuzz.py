"""A short run of the fuzzer, with inputs that are always the same; long runs are in `docs/results/fuzz.txt`."""

from __future__ import annotations

import subprocess
import sys


def test_damaged_inputs_are_accepted_or_refused_as_documented() -> None:
    # a process of its own, because the fuzzer limits its memory
    done = subprocess.run(
        [sys.executable, "-m", "tests.attacks.fuzz", "--runs", "2300"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "0 findings" in done.stdout
