"""Write `requirements/*.lock` anew from pyproject.toml: ``python deploy/refresh_locks.py`` (needs uv, and an index).

`server.lock` has what both sides run with, `client.lock` adds what only a silo needs (DICOM), `cuda.lock` what
PyTorch's Linux builds with CUDA load besides. A lock has names, versions, markers and hashes; where files come from is
the installer's setting, never the lock's.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "requirements"
HEADER = "# Written by deploy/refresh_locks.py; install with pip's --require-hashes (deploy/README.md).\n"
CUDA = re.compile(r"(nvidia-|cuda-|triton==)")


def blocks(text: str) -> list[str]:
    """The entries of a lock file: a pinned requirement each, with its hashes on the lines after it."""
    lines = [line for line in text.splitlines() if line and not line.startswith(("#", "-r "))]
    return [block.rstrip("\n") for block in re.split(r"(?m)^(?=\S)", "\n".join(lines)) if block]


def compiled(folder: Path, extras: tuple[str, ...] = (), constraints: Path | None = None) -> list[str]:
    """What uv resolves for every platform, as entries. A local version (`+cpu`) would name one index's builds."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if uv is None:
        raise SystemExit("uv is not installed: pip install 'dpdd[dev]'")
    out = folder / "compiled.lock"
    command = [uv, "pip", "compile", str(ROOT / "pyproject.toml"), "--quiet", "--no-config", "--universal", "--upgrade"]
    command += ["--python-version", "3.11", "--prerelease", "disallow", "--generate-hashes"]
    command += [
        "--no-header",
        "--no-annotate",
        "--no-emit-index-url",
        "--no-emit-find-links",
        "--output-file",
        str(out),
    ]
    command += [word for extra in extras for word in ("--extra", extra)]
    command += ["--constraints", str(constraints)] if constraints else []
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found = blocks(out.read_text())
    if any("+" in block.split()[0] for block in found):
        raise SystemExit("a local version was resolved: take PyTorch from the index of its releases")
    return found


def main() -> int:
    """Write the three locks."""
    with tempfile.TemporaryDirectory() as scratch:
        both = compiled(Path(scratch))
        constraints = Path(scratch) / "both.txt"
        constraints.write_text("\n".join(both) + "\n")
        medical = [block for block in compiled(Path(scratch), ("medical",), constraints) if block not in both]
    LOCKS.mkdir(exist_ok=True)
    cuda = [block for block in both if CUDA.match(block)]
    for name, head, entries in (
        ("server", "", [block for block in both if block not in cuda]),
        ("client", "-r server.lock\n", medical),
        ("cuda", "", cuda),
    ):
        (LOCKS / f"{name}.lock").write_text(HEADER + head + "\n".join(entries) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
