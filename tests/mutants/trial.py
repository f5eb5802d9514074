"""Trying a mutant: in a copy of the tree, with the tests that it names, and nowhere else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path

from tests.mutants.mutant import ROOT, Mutant

MOST_SECONDS = 300.0
"""A safety net for a mutant that never ends; none is expected to."""
_LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "runs", "build", "dist", "docs")
_BROKEN = (
    "SyntaxError",
    "IndentationError",
    "ImportError",
    "ModuleNotFoundError",
    "NameError",
    "UnboundLocalError",
    "AttributeError",
    "RecursionError",
    "fixture",
)
"""What a change raises that is no working program: that says nothing about tests."""


@dataclass(frozen=True)
class Outcome:
    """What became of some tests: the first that failed, and what it said; `broken` if that says nothing."""

    failed: str = ""
    said: str = ""
    broken: bool = False
    seconds: float = 0.0

    @property
    def caught(self) -> bool:
        """Whether a test noticed."""
        return bool(self.failed) and not self.broken


class Copy:
    """The tree in a folder of its own, where `dpdd` means that folder."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        shutil.copytree(ROOT, self.root, ignore=_LEFT_OUT)
        self._packages = folder / "packages"
        (self._packages / "dpdd").mkdir(parents=True)
        mapping = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
        for name, path in mapping.items():
            (self._packages / "dpdd" / name.removeprefix("dpdd.")).symlink_to(self.root / path)
        where = "import dpdd.common, pathlib; print(pathlib.Path(dpdd.common.__file__).resolve())"
        found = subprocess.run(
            [sys.executable, "-c", where], cwd=self.root, env=self._environment({}), capture_output=True, text=True
        )
        if found.stdout.strip() != str((self.root / "common" / "__init__.py").resolve()):
            raise RuntimeError(f"the copy is not what would be tested: {found.stdout}{found.stderr}")

    def try_out(self, mutant: Mutant) -> Outcome:
        """What the tests that `mutant` names say of the tree with its change, which is taken back."""
        changed = {self.root / file: text.encode() for file, text in mutant.applied(self.root).items()}
        originals = {path: path.read_bytes() for path in changed}
        try:
            for path, data in changed.items():
                self._write(path, data)
            return self.run(mutant.killed_by)
        finally:
            for path, data in originals.items():
                self._write(path, data)

    def run(self, tests: Sequence[str], environment: Mapping[str, str] | None = None) -> Outcome:
        """The first of these tests to fail, if one does."""
        report, started = self.root / "report.xml", time.monotonic()
        report.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-x", "-m", "", "-p", "no:cacheprovider", "-p", "no:randomly"]
        command += [f"--junitxml={report}", *tests]
        try:
            done = subprocess.run(
                command,
                cwd=self.root,
                env=self._environment(environment or {}),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=MOST_SECONDS * max(1.0, len(tests) / 3.0),
            )
        except subprocess.TimeoutExpired:
            return Outcome(tests[0], "ran out of time", broken=True, seconds=time.monotonic() - started)
        seconds = time.monotonic() - started
        if done.returncode == 0:
            return Outcome(seconds=seconds)
        if done.returncode != 1 or not report.is_file():
            return Outcome(tests[0], f"no test was run: {done.stdout[-800:]}{done.stderr[-400:]}", True, seconds)
        return _read(report, seconds)

    def _environment(self, more: Mapping[str, str]) -> dict[str, str]:
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        return {**os.environ, **threads, "PYTHONPATH": str(self._packages), **more}

    def _write(self, path: Path, data: bytes) -> None:
        """A file, whose compiled form goes: that would pass for the new one's if both have one size and second."""
        path.write_bytes(data)
        Path(cache_from_source(str(path))).unlink(missing_ok=True)


def _read(report: Path, seconds: float) -> Outcome:
    """The first failure in a report of pytest's."""
    for case in ElementTree.parse(report).iter("testcase"):
        for kind in ("failure", "error"):
            if (found := case.find(kind)) is not None:
                said = " ".join((found.get("message") or "").split())
                name = f"{(case.get('classname') or '').rpartition('.')[2]}::{case.get('name')}"
                broken = kind == "error" or said.startswith(_BROKEN)
                return Outcome(name, said[:200], broken, seconds)
    return Outcome("?", "pytest failed without a test that did", True, seconds)
