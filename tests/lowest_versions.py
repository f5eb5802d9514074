"""Try the lower bounds of pyproject.toml: ``python tests/lowest_versions.py [folder]`` (needs uv, an index and 6 GB).

Installs the lowest version of everything that is declared into a fresh environment, and runs a quick part of the
tests there.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
QUICK = (
    "tests/common/privacy",
    "tests/common/wire",
    "tests/common/files",
    "tests/client/ledger",
    "tests/client/test_silo.py",
    "tests/client/test_cli.py",
    "tests/client/transport/test_node.py",
    "tests/methods/test_contract.py",
    "tests/server/aggregation",
    "tests/server/evaluation/test_classical.py",
)


def main(folder: Path) -> int:
    """pytest's exit code in the environment with the lowest versions."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        raise SystemExit("uv is not installed: pip install 'dpdd[dev]'")
    python = folder / "venv" / "bin" / "python"
    pins = folder / "lowest.txt"
    project = str(ROOT / "pyproject.toml")
    for command in (
        ["venv", "--quiet", "--python", "3.11", str(folder / "venv")],
        ["pip", "compile", project, "--quiet", "--extra", "dev", "--resolution", "lowest-direct", "-o", str(pins)],
        ["pip", "install", "--quiet", "--python", str(python), "-r", str(pins)],
        ["pip", "install", "--quiet", "--python", str(python), "--no-deps", "--editable", str(ROOT)],
    ):
        subprocess.run([uv, *command], check=True, stdout=subprocess.DEVNULL)
    return subprocess.run([str(python), "-m", "pytest", "-p", "no:cacheprovider", *QUICK], cwd=ROOT).returncode


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).mkdir(parents=True)
        sys.exit(main(Path(sys.argv[1])))
    with tempfile.TemporaryDirectory() as scratch:
        sys.exit(main(Path(scratch)))
