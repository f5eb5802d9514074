"""`kill -9` of a coordinator, its silos and their workers at random instants.

``python -m tests.server.transport.soak --kills 100``, and with ``--method rounds`` over many gradient rounds, where
somebody is killed every few seconds (`soak_rounds.py`).

Every run starts from the same silos. A run without kills is the reference; with noise from a seed, every other run must
end with the same releases (but for the time in the ledger that each release points to), the same dataset to the last
bit, the same ledgers, and the bytes in the coordinator's store must be those in the outboxes.

Processes are forked from this one, which has imported everything and started nothing, so that a restart costs
milliseconds: most of the time is spent where a kill hurts. Workers are struck while they plan, read, sum and send; each
silo's at most twice in a run, as a request that ends its worker three times is not tried again.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SILOS = 5
MOST_STRIKES = 2
RUN_SECONDS = 240.0
PHASES = (
    "starting",
    "uploading",
    *(f"{count} of {SILOS} releases here" for count in range(1, SILOS)),
    "synthesis",
    "finishing",
)
UPLOADING = PHASES.index("uploading")
SCENARIO = f"""
name = "soak"
[data]
dataset = "fashion-slice"
silos = {SILOS}
records_per_silo = 60
[privacy]
epsilon = 8.0
[method]
name = "dp-merf"
[method.settings]
features = 8000
count_weight = 0.5
[synthesis]
images_per_class = 1
[synthesis.settings]
steps = 4
batch = 10
[evaluation]
runs = 0
"""


def warm_up() -> None:
    """Import what the processes need, so that they need not."""
    import scipy.special  # noqa: F401
    import torch

    import dpdd.client.mechanisms.dp_kip
    import dpdd.client.mechanisms.dp_merf
    import dpdd.client.transport.node
    import dpdd.client.worker.jobs
    import dpdd.common.methods.dp_kip.planning
    import dpdd.common.methods.dp_merf.synthesis
    import dpdd.server.app
    import dpdd.server.transport.running  # noqa: F401

    torch.set_num_threads(1)


def serve(home: Path, ports: tuple[int, int]) -> None:
    """The coordinator's process."""
    from dpdd.common.progress import Console
    from dpdd.server.transport import running
    from dpdd.server.transport.coordinator import Coordinator
    from dpdd.server.transport.service import Address

    coordinator = Coordinator(home / "coordinator")
    running.run(
        coordinator,
        home / "soak.toml",
        home / "run",
        Console(),
        address=Address("127.0.0.1", *ports),
        deadline_minutes=5,
    )


def answer(home: Path, silo: str, join_port: int) -> None:
    """A silo's process: join if that was not done, then run."""
    from dpdd.client.silo import Silo
    from dpdd.client.transport.join import join
    from dpdd.client.transport.node import Node
    from dpdd.common.errors import DpddError
    from dpdd.common.progress import Console
    from dpdd.common.wire.exchange import Token
    from tests.client.worker.forked import ForkedWorker

    worker = ForkedWorker()
    worker.start()
    folder = home / "silos" / silo
    while Silo(folder).settings.coordinator is None:
        try:
            join(Silo(folder), f"127.0.0.1:{join_port}", Token.parse((home / f"{silo}.token").read_text()))
        except DpddError as error:
            print(error, flush=True)
            time.sleep(0.1)
    Node(folder, Console(), worker=worker).run()


@dataclass
class Children:
    """The processes of one run."""

    log: Path
    makers: dict[str, Callable[[], None]]
    chance: random.Random
    pids: dict[str, int] = field(default_factory=dict)
    strikes: dict[str, int] = field(default_factory=dict)
    codes: dict[str, int] = field(default_factory=dict)

    def start(self, name: str) -> None:
        """Fork it."""
        if (child := os.fork()) == 0:
            code = 1
            try:
                os.setsid()
                target = os.open(self.log / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.dup2(target, 1)
                os.dup2(target, 2)
                self.makers[name]()
                code = 0
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", flush=True)
            finally:
                os._exit(code)
        self.pids[name] = child

    def ended(self, name: str) -> int | None:
        """Its exit code, once it has ended by itself."""
        if name not in self.codes:
            pid, status = os.waitpid(self.pids[name], os.WNOHANG)
            if not pid:
                return None
            self.codes[name] = os.waitstatus_to_exitcode(status)
        return self.codes[name]

    def kill(self, name: str) -> None:
        """-9, and gone."""
        os.kill(self.pids[name], signal.SIGKILL)
        os.waitpid(self.pids[name], 0)
        del self.pids[name]

    def strike(self, silos: list[str]) -> bool:
        """-9 for the next worker of any of these silos, at any moment of its life; their nodes go on."""
        from tests.client.worker.forked import workers_of

        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline and self.ended("server") is None:
            for name in self.chance.sample(silos, len(silos)):
                if self.strikes.get(name, 0) == MOST_STRIKES or not (workers := workers_of(self.pids[name])):
                    continue
                time.sleep(self.chance.random() ** 2 * 0.2)
                if workers[0] in workers_of(self.pids[name]):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(workers[0], signal.SIGKILL)
                    self.strikes[name] = self.strikes.get(name, 0) + 1
                    return True
        return False


def one_run(template: Path, home: Path, kills: int, chance: random.Random, struck: dict[str, int]) -> dict[str, Any]:
    """A whole run with so many kills; what it left behind."""
    children = processes(template, home, chance)
    silos = sorted(set(children.makers) - {"server"})
    try:
        for name in children.makers:
            children.start(name)
        deadline = time.monotonic() + RUN_SECONDS
        done: int | None = None
        goals = moments(kills, chance)
        while done is None:
            assert time.monotonic() < deadline, "the run does not end"
            if goals:
                goal = goals[0]
                if goal <= UPLOADING and chance.random() < 0.4 and children.strike(silos):
                    count(struck, f"worker, {phase(home)}")
                    goals.pop(0)
                    continue
                wait(home, goal, chance)
                victim = "server" if chance.random() < 0.5 else chance.choice(silos)
                if (done := children.ended("server")) is not None:
                    break
                count(struck, f"{'server' if victim == 'server' else 'silo'}, {phase(home)}")
                children.kill(victim)
                goals.pop(0)
                time.sleep(chance.random() * 0.2)
                children.start(victim)
            else:
                time.sleep(0.05)
                done = children.ended("server")
        assert done == 0, (home / "server.log").read_text()[-2000:]
        children.pids.pop("server", None)
        count(struck, "left over", len(goals))
    finally:
        for name in list(children.pids):
            children.kill(name)
    return remains(home)


def processes(template: Path, home: Path, chance: random.Random) -> Children:
    """A coordinator and its silos in a new folder, not started yet."""
    shutil.copytree(template, home)
    ports = (free_port(), free_port())
    makers: dict[str, Callable[[], None]] = {"server": lambda: serve(home, ports)}
    for path in sorted((home / "silos").iterdir()):
        makers[path.name] = lambda silo=path.name: answer(home, silo, ports[1])  # type: ignore[misc]
    return Children(home, makers, chance)


def moments(kills: int, chance: random.Random) -> list[int]:
    """For each kill of a run the phase that it waits for, so that they are spread over all of them."""
    return sorted(chance.choice((0, 0, UPLOADING, *range(len(PHASES)))) for _ in range(kills))


def wait(home: Path, goal: int, chance: random.Random) -> None:
    """Until the run has come to this phase, or seems not to; and then a while, a blink where the phase is short."""
    deadline = time.monotonic() + 3.0
    while PHASES.index(phase(home)) < goal and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(chance.random() ** 2 * (0.05 if PHASES[goal] in ("uploading", "finishing") else 1.0))


def phase(home: Path) -> str:
    """How far the run was."""
    store = home / "run" / "store"
    releases = sum(len(path.name) == 64 for path in store.iterdir()) if store.exists() else 0
    if (home / "run" / "dataset").exists():
        return "finishing"
    partial = store / "partial"
    if partial.exists() and any(partial.iterdir()):
        return "uploading"
    return "starting" if releases == 0 else f"{releases} of {SILOS} releases here" if releases < SILOS else "synthesis"


def remains(home: Path, stages: int = 1) -> dict[str, Any]:
    """Check what must hold in any run; return what must be the same in all."""
    from dpdd.client.silo import Silo
    from dpdd.common.wire.release import open_signed
    from dpdd.server.cli import main as server

    stored = {path.name for path in (home / "run" / "store").iterdir() if len(path.name) == 64}
    assert not any((home / "run" / "store" / "partial").iterdir()), "a partial file was left behind"
    state: dict[str, Any] = {}
    for folder in sorted((home / "silos").iterdir()):
        silo = Silo(folder)
        ledger = silo.ledger()
        kinds = [entry.kind for entry in ledger.entries()]
        status = ledger.status()
        ledger.close()
        assert kinds == ["open", "reserve", "commit", *["stage", "commit"] * (stages - 1)], (folder.name, kinds)
        state[folder.name] = [status.spent, status.remaining]
        for path in sorted((folder / "state" / "outbox").iterdir()):
            data = path.read_bytes()
            digest = hashlib.sha256(data).hexdigest()
            assert digest in stored, f"the coordinator has another release of {folder.name} than its outbox"
            release = open_signed(data, silo.public_key)
            arrays = {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in release.arrays.items()}
            state[folder.name].append([release.request_id, repr(release.event), arrays])
        assert len(state[folder.name]) == 2 + stages
    assert len(stored) == stages * len(list((home / "silos").iterdir()))
    with contextlib.redirect_stdout(io.StringIO()):
        assert server(["verify", str(home / "run")]) == 0
    state["dataset"] = json.loads((home / "run" / "metrics.json").read_text())["dataset"]["sha256"]
    return state


def count(struck: dict[str, int], what: str, more: int = 1) -> None:
    """So many kills more of a kind."""
    struck[what] = struck.get(what, 0) + more


def free_port() -> int:
    """A port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def prepare(template: Path, scenario: str) -> None:
    """Silos, a coordinator and tokens: what every run starts from."""
    from dpdd.common.progress import Console
    from dpdd.scenarios.simulator.silos import set_up
    from dpdd.server.run.scenario import load_scenario
    from dpdd.server.transport.coordinator import Coordinator

    template.mkdir(parents=True)
    (template / "soak.toml").write_text(scenario)
    silos = set_up(load_scenario(str(template / "soak.toml")), template, Console(quiet=True), noise_seed=7)
    coordinator = Coordinator.initialise(template / "coordinator")
    for silo in silos:
        (template / f"{silo.settings.name}.token").write_text(str(coordinator.enrol(silo.settings.name)))
    coordinator.close()


def main() -> None:
    """Soak, and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--kills-per-run", type=int, default=10)
    parser.add_argument("--method", choices=("one-shot", "rounds"), default="one-shot")
    parser.add_argument("--dropouts", choices=("wait", "skip"), default="wait", help="the rule for rounds")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--every", type=float, default=3.0, help="seconds between kills over rounds, on average")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    warm_up()
    chance = random.Random(options.seed)
    template = options.folder / "template"
    if options.method == "rounds":
        from tests.server.transport import soak_rounds

        soak = soak_rounds.soak if options.dropouts == "wait" else soak_rounds.soak_skipping
        print(json.dumps({**soak(options.folder, options.rounds, options.every, chance), "seed": options.seed}))
        return
    prepare(template, SCENARIO)
    started = time.monotonic()
    struck: dict[str, int] = {}
    reference = one_run(template, options.folder / "reference", 0, chance, struck)
    runs, done = 0, 0
    while done < options.kills:
        runs += 1
        wanted = min(options.kills_per_run, options.kills - done)
        home = options.folder / f"run-{runs}"
        before = struck.get("left over", 0)
        result = one_run(template, home, wanted, chance, struck)
        assert result == reference, f"seed {options.seed}: run {runs} ended with other releases, ledgers or dataset"
        done += wanted - (struck.get("left over", 0) - before)
        print(f"run {runs}: same releases, ledgers and dataset after {done} kills in all", file=sys.stderr, flush=True)
        shutil.rmtree(home)
    struck.pop("left over", None)
    print(json.dumps({"kills": done, "runs": runs, "seed": options.seed, "struck": dict(sorted(struck.items()))}))
    print(f"({SILOS} silos and a server; {time.monotonic() - started:.0f} s)", file=sys.stderr)


if __name__ == "__main__":
    main()
