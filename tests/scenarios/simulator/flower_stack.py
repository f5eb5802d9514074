"""A stock SuperLink, a SuperNode per silo, and `flwr run`.

``python -m tests.scenarios.simulator.flower_stack TOML FOLDER``

Meant for `tests.alone`, where every port is free and whatever is left at the end is stopped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from dpdd.common.progress import Console
from dpdd.scenarios.simulator import silos as simulated
from dpdd.server.run.scenario import load_scenario

APP = Path(simulated.__file__).parent / "flower_app"
BIN = Path(sys.executable).parent
SUPERLINK = "127.0.0.1:8000"


def main(scenario: Path, folder: Path) -> None:
    silos = simulated.set_up(load_scenario(str(scenario)), folder, Console(quiet=True), noise_seed=3)
    simulated.roster_of(silos).save(folder / "silos.json")
    home = folder / "flower"
    home.mkdir()
    (home / "config.toml").write_text(f'[superlink.here]\naddress = "{SUPERLINK}"\ninsecure = true\n')
    os.environ |= {"FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    os.environ["PATH"] = f"{BIN}{os.pathsep}{os.environ['PATH']}"  # they start each other by name
    logs = [home / f"{silo.settings.name}.log" for silo in silos]
    host, _, port = SUPERLINK.partition(":")
    link = ["--insecure", "--host", host, "--port", port, "--disable-runtime-dependency-installation"]
    started = [start(home / "superlink.log", "flower-superlink", *link)]
    for number, (silo, log) in enumerate(zip(silos, logs, strict=True)):
        node = ["--insecure", "--superlink", SUPERLINK, "--port", str(9100 + number)]
        node += ["--node-config", f"silo={json.dumps(str(silo.folder))}"]
        started.append(start(log, "flower-supernode", *node))
    deadline = time.monotonic() + 120.0
    while not all("SuperNode ID" in log.read_text() for log in logs):
        if time.monotonic() > deadline or any(process.poll() is not None for process in started):
            sys.exit("\n".join(log.read_text() for log in home.glob("*.log")))
        time.sleep(0.2)
    config = f"scenario={json.dumps(str(scenario))} folder={json.dumps(str(folder))}"
    subprocess.run(["flwr", "run", APP, "here", "--run-config", config, "--stream"], check=True)
    if not (folder / "metrics.json").exists():
        sys.exit("\n".join(log.read_text() for log in home.glob("*.log")))


def start(log: Path, program: str, *arguments: str) -> subprocess.Popen[bytes]:
    with log.open("w") as file:
        return subprocess.Popen([program, *arguments], stdout=file, stderr=subprocess.STDOUT)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
