"""The exchange on one machine: a coordinator and silos as processes of their own, mutual TLS on loopback.

The server and every silo run their installed commands, exactly as they would on machines of their own, with
certificates that the coordinator's authority signed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpdd.client.silo import Silo
from dpdd.client.transport.join import join
from dpdd.common.errors import DpddError
from dpdd.common.progress import Console
from dpdd.common.synthesis.runner import SynthesisRunner
from dpdd.scenarios.simulator.simulation import Simulation
from dpdd.server.transport.coordinator import Coordinator

STARTING = 120.0
_LAST_WORDS = 12
_ONE_LINE = threading.Lock()


def run(simulation: Simulation) -> dict[str, Any]:
    """Set up the silos (once), then run `dpdd-server` and a `dpdd-client` per silo; what `metrics.json` holds."""
    return run_silos(
        simulation.set_up(),
        simulation.scenario_file,
        simulation.folder,
        simulation.console,
        simulation.runner,
        rehearsal=simulation.rehearsal,
    )


def run_silos(
    silos: Sequence[Silo],
    scenario: str,
    folder: Path,
    console: Console,
    runner: SynthesisRunner | None = None,
    *,
    rehearsal: bool = True,
) -> dict[str, Any]:
    """Run `dpdd-server` on a scenario and a `dpdd-client` for each of these silos; what `metrics.json` holds.

    Whatever happens, also Ctrl-C, every process that was started here is stopped before this returns.
    """
    runner = runner or SynthesisRunner()
    coordinator = Coordinator.initialise(folder / "coordinator")
    try:
        known = {entry.name: entry for entry in coordinator.registry.silos()}
        tokens = {
            silo.settings.name: coordinator.enrol(silo.settings.name)
            for silo in silos
            if silo.settings.coordinator is None
            or silo.settings.name not in known
            or not known[silo.settings.name].joined
        }
        serving = coordinator.serving_file
        serving.unlink(missing_ok=True)
    finally:
        coordinator.close()
    (folder / "metrics.json").unlink(missing_ok=True)
    processes = Processes(console)
    try:
        command = ["dpdd.server.cli", "run", scenario, "--coordinator", str(folder / "coordinator")]
        command += ["--out", str(folder), "--port", "0", "--join-port", "0"]
        command += ["--device", runner.device]
        command += [] if runner.workers is None else ["--workers", str(runner.workers)]
        command += [] if rehearsal else ["--no-rehearsal"]
        server = processes.start("server", command)
        where = _where(serving, server)
        for silo in silos:
            if silo.settings.name in tokens:
                join(silo, f"127.0.0.1:{where['join_port']}", tokens[silo.settings.name])
        address = f"127.0.0.1:{where['port']}"
        nodes = [
            processes.start(
                silo.settings.name, ["dpdd.client.cli", "run", "--silo", str(silo.folder), "--address", address]
            )
            for silo in silos
        ]
        _await(server, nodes, serving)
    finally:
        processes.stop()
    metrics: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
    return metrics


class Process:
    """A command in a process of its own. What it says on stderr is relayed line by line; its result, on stdout, is not:
    that is for who runs it by hand."""

    def __init__(self, who: str, command: Sequence[str], console: Console) -> None:
        self.who, self.last = who, list[str]()
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C comes to us alone, and we stop it in order
        )
        self._reader = threading.Thread(target=self._relay, args=(console,), daemon=True)
        self._reader.start()

    def _relay(self, console: Console) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            text = line.rstrip()
            self.last = [*self.last, text][-_LAST_WORDS:]
            with _ONE_LINE:
                console.say(f"  {self.who:<8} │ {text.strip()}")

    @property
    def code(self) -> int | None:
        """The exit code, once it has ended."""
        return self._process.poll()

    def words(self) -> str:
        """What it said last."""
        self._reader.join(2.0)
        said = [line for line in self.last if "error:" in line] or self.last
        return said[-1].partition("error: ")[2] or said[-1] if said else f"exit code {self.code}"

    def signal(self, number: int) -> None:
        """Send a signal, if it is still there."""
        if self.code is None:
            self._process.send_signal(number)

    def wait(self, seconds: float) -> bool:
        """Whether it ended within so many seconds."""
        try:
            self._process.wait(max(seconds, 0.01))
        except subprocess.TimeoutExpired:
            return False
        return True


class Processes:
    """Those that were started here."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started: list[Process] = []

    def start(self, who: str, command: Sequence[str]) -> Process:
        """Start `python -m command…`."""
        process = Process(who, command, self._console)
        self._started.append(process)
        return process

    def stop(self) -> None:
        """Ask all to end, then insist."""
        for process in self._started:
            process.signal(signal.SIGTERM)
        deadline = time.monotonic() + 10.0
        for process in self._started:
            if not process.wait(deadline - time.monotonic()):
                process.signal(signal.SIGKILL)
                process.wait(10.0)


def _where(serving: Path, server: Process) -> dict[str, Any]:
    """Where the server listens, as soon as it says so."""
    deadline = time.monotonic() + STARTING
    while time.monotonic() < deadline:
        if server.code is not None:
            raise DpddError(f"the server did not start: {server.words()}")
        try:
            address: dict[str, Any] = json.loads(serving.read_text())
            return address
        except (OSError, ValueError):
            time.sleep(0.05)
    raise DpddError(f"the server did not start within {STARTING:g} s: {server.words()}")


def _await(server: Process, nodes: Sequence[Process], serving: Path) -> None:
    """Until the server is done. A silo whose process ends before that is an error: nobody would answer for it."""
    while not server.wait(0.1):
        for node in nodes:
            if not serving.exists():  # the dataset is built
                node.signal(signal.SIGTERM)
            elif node.code is not None:
                raise DpddError(f"the process of silo {node.who} ended: {node.words()}")
    if server.code:
        raise DpddError(f"the server failed: {server.words()}")
