"""Running cells: each is `dpdd-sim run` on the cell's file, in a process of its own with one thread.

A cell that is finished says so in `KEY.done.json`, with the hash of what it ran; it is never run again. One that is not
goes on where it was: its folder keeps the silos' releases. A cell that fails has its sentence, and stops no other;
the next time it is tried again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dpdd.common.errors import ConfigError
from dpdd.common.files.atomic import write_atomically
from dpdd.scenarios.compare.grid import Cell

CELLS = "cells"
PROGRAM = (sys.executable, "-m", "dpdd.scenarios.cli")
"""`dpdd-sim`, by the interpreter that runs this."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


@dataclass(frozen=True)
class Ended:
    """A cell's end: seconds by the clock and of the processor, or the sentence that says why there is none."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    failure: str | None = None


@dataclass
class Cells:
    """The cells of a grid in its folder, and how each ended; what is not there has not ended."""

    folder: Path
    cells: Sequence[Cell]
    ended: dict[str, Ended] = field(default_factory=dict)

    def home(self, cell: Cell) -> Path:
        """The folder of a cell's run."""
        return self.folder / CELLS / cell.key

    def file(self, cell: Cell) -> Path:
        """The scenario file of a cell."""
        return self.folder / CELLS / f"{cell.key}.toml"

    def prepare(self) -> None:
        """Write the cells' files, and see which have ended. ConfigError where one was started with another file."""
        (self.folder / CELLS).mkdir(parents=True, exist_ok=True)
        for cell in self.cells:
            path = self.file(cell)
            if path.exists() and path.read_text(encoding="utf-8") != cell.text:
                raise ConfigError(
                    f"{path}: this cell was started with other settings than the grid has now; choose another --out, "
                    "or start this grid over with --fresh"
                )
        for cell in self.cells:
            if not self.file(cell).exists():
                cell.write(self.folder / CELLS)
            if (done := self._done(cell)) is not None:
                self.ended[cell.key] = done
            elif self._failed(cell).exists():
                self.ended[cell.key] = Ended(failure=self._failed(cell).read_text(encoding="utf-8"))

    def forget_failures(self) -> None:
        """What failed is to run again."""
        for cell in self.cells:
            if cell.key in self.ended and self.ended[cell.key].failure is not None:
                del self.ended[cell.key]
                self._failed(cell).unlink(missing_ok=True)

    def _done(self, cell: Cell) -> Ended | None:
        try:
            found = json.loads(self._note(cell).read_text(encoding="utf-8"))
            if found["scenario_sha256"] != _sha256(cell.text) or not (self.home(cell) / "metrics.json").exists():
                return None
            return Ended(float(found["seconds"]), float(found["cpu_seconds"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _note(self, cell: Cell) -> Path:
        return self.folder / CELLS / f"{cell.key}.done.json"

    def _failed(self, cell: Cell) -> Path:
        return self.folder / CELLS / f"{cell.key}.failed.txt"

    def command(self, cell: Cell) -> list[str]:
        """What runs the cell. Noise comes from the seed, so that the cell can be repeated: it protects nobody."""
        home, file = str(self.home(cell)), str(self.file(cell))
        return ["dpdd-sim", "run", file, "--out", home, "--noise-seed", str(cell.seed), "--workers", "1", "--quiet"]

    def command_line(self, cell: Cell) -> str:
        """The same for people."""
        return f"OMP_NUM_THREADS=1 {shlex.join(self.command(cell))}"

    def run(self, jobs: int, told: Callable[[Cell, Ended], None]) -> None:
        """Run what has not ended, `jobs` cells at a time. Whatever happens, no process that was started stays."""
        pending = [cell for cell in self.cells if cell.key not in self.ended]
        with _processes() as processes, ThreadPoolExecutor(jobs) as pool:
            running: dict[Future[Ended], Cell] = {}
            try:
                while pending or running:
                    while pending and len(running) < jobs:
                        cell = pending.pop(0)
                        running[pool.submit(self._run, cell, processes)] = cell
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        cell = running.pop(future)
                        self.ended[cell.key] = future.result()
                        told(cell, self.ended[cell.key])
            except BaseException:
                processes.stop()
                raise

    def _run(self, cell: Cell, processes: Processes) -> Ended:
        _, *words = self.command(cell)
        log = self.folder / CELLS / f"{cell.key}.log"
        started = time.monotonic()
        code, cpu = processes.run([*PROGRAM, *words], log)
        if code != 0:
            why = last_words(log, code)
            if not processes.stopped:
                write_atomically(self._failed(cell), why.encode())
            return Ended(time.monotonic() - started, cpu, why)
        ended = Ended(round(time.monotonic() - started, 1), round(cpu, 1))
        facts = {
            "scenario_sha256": _sha256(cell.text),
            "seconds": ended.seconds,
            "cpu_seconds": ended.cpu_seconds,
        }
        write_atomically(self._note(cell), f"{json.dumps(facts, indent=2)}\n".encode())
        return ended


class Processes:
    """Processes that were started here; all of them can be stopped."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self.stopped = False

    def run(self, command: Sequence[str], log: Path) -> tuple[int, float]:
        """Run a command with its output in a file; its exit code, and seconds of the processor."""
        with log.open("wb") as output:
            with self._lock:
                if self.stopped:
                    return -1, 0.0
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=_environment()
                )
                self._running.add(process)
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            with self._lock:  # nobody is signalled whose number may be another's by now
                _, status, usage = os.wait4(process.pid, 0)
                self._running.discard(process)
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, usage.ru_utime + usage.ru_stime

    def stop(self) -> None:
        """End what runs, and start nothing more."""
        with self._lock:
            self.stopped = True
            for process in self._running:
                os.kill(process.pid, signal.SIGTERM)


@contextmanager
def _processes() -> Iterator[Processes]:
    processes = Processes()
    try:
        yield processes
    finally:
        processes.stop()


def _environment() -> Mapping[str, str]:
    return {**os.environ, **ONE_THREAD}


def last_words(log: Path, code: int) -> str:
    """Why a command failed, from the end of its output."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    if code < 0:
        return f"it was ended by signal {-code}"
    said = lines[-1] if lines else f"it left with exit code {code}"
    return said.removeprefix("dpdd-sim: error: ")[:500]


def start_over(folder: Path) -> None:
    """Remove what an earlier comparison left; refuses to remove anything else."""
    if not folder.exists():
        return
    if any(folder.iterdir()) and not (folder / CELLS).is_dir():
        raise ConfigError(f"{folder}: this does not look like a comparison's folder; remove it yourself")
    shutil.rmtree(folder)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
