"""Run mypy over the project: ``python tests/typecheck.py``.

The folders are subpackages of `dpdd` only once installed, so mypy gets a scratch folder of links to them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """mypy's exit code."""
    mapping = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    with tempfile.TemporaryDirectory() as scratch:
        package = Path(scratch) / "dpdd"
        package.mkdir()
        for name, folder in mapping.items():
            (package / name.removeprefix("dpdd.")).symlink_to(ROOT / folder)
        command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--cache-dir"]
        command += [str(ROOT / ".mypy_cache"), "-p", "dpdd"]
        return subprocess.run(command, cwd=scratch, env={**os.environ, "MYPYPATH": scratch}).returncode


if __name__ == "__main__":
    sys.exit(main())
