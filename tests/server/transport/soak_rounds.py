"""The soak over many gradient rounds: somebody is killed every few seconds, and the support set stays what it was.

``python -m tests.server.transport.soak --method rounds --rounds 200 --every 3``

By the rule `wait` a round waits for all three silos. The undisturbed run is in one process (`dpdd-sim` without the
exchange), with the same noise from a seed. The other, over the exchange with a server, three nodes and their workers as
processes, must end with the same releases, the same support set and ledgers with one reservation each.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.server.transport import soak as base

SILOS = 3
NOISE_SEED = 7
RUN_SECONDS = 900.0
SCENARIO = """
name = "soak"
[data]
dataset = "fashion-slice"
silos = 3
records_per_silo = 200
[privacy]
epsilon = 1.0
[method]
name = "dp-kip"
[method.settings]
steps = {rounds}
rate = {rate}
support_per_class = 1
[synthesis]
images_per_class = 1
[evaluation]
runs = 0
[exchange]
{exchange}
"""


def scenario(rounds: int, rate: float = 0.2, exchange: str = 'dropouts = "wait"') -> str:
    """So many rounds of three silos. At a rate of 1 nobody has to account for samples, which takes seconds."""
    return SCENARIO.format(rounds=rounds, rate=rate, exchange=exchange)


def undisturbed(template: Path, home: Path, rounds: int) -> dict[str, Any]:
    """The same run in one process; what it left behind."""
    from dpdd.client.silo import Silo
    from dpdd.common.progress import Console
    from dpdd.common.synthesis.runner import SynthesisRunner
    from dpdd.scenarios.simulator.inprocess import grid_of
    from dpdd.server.app import run_on
    from dpdd.server.run.folder import ROSTER
    from dpdd.server.run.roster import Roster

    shutil.copytree(template, home)
    silos, run = [Silo(path) for path in sorted((home / "silos").iterdir())], home / "run"
    run.mkdir()
    Roster({silo.settings.name: silo.public_key for silo in silos}).save(run / ROSTER)
    console = Console(quiet=True)
    run_on(grid_of(silos, console), str(home / "soak.toml"), run, SynthesisRunner(), console)
    (run / "store" / "partial").mkdir()
    return base.remains(home, rounds)


def closed_rounds(home: Path) -> int:
    """How many rounds the coordinator has closed."""
    index = home / "run" / "store" / "index.sqlite"
    if not index.exists():
        return 0
    try:
        with closing(sqlite3.connect(f"file:{index}?mode=ro", uri=True, timeout=5.0)) as db:
            return int(db.execute("SELECT count(*) FROM rounds").fetchone()[0])
    except sqlite3.Error:  # it is just being made
        return 0


def disturbed(
    template: Path, home: Path, rounds: int, disturb: Callable[[base.Children, int], object], chance: random.Random
) -> dict[str, Any]:
    """A run over the exchange during which `disturb` is told, again and again, how many rounds are closed."""
    run(template, home, disturb, chance)
    return base.remains(home, rounds)


def run(template: Path, home: Path, disturb: Callable[[base.Children, int], object], chance: random.Random) -> None:
    """The same, whatever it leaves behind."""
    children = base.processes(template, home, chance)
    try:
        for name in children.makers:
            children.start(name)
        deadline = time.monotonic() + RUN_SECONDS
        while (done := children.ended("server")) is None:
            assert time.monotonic() < deadline, f"the run does not end: {tail(home)}"
            disturb(children, closed_rounds(home))
            time.sleep(0.01)
        children.pids.pop("server", None)
        assert done == 0, tail(home)
    finally:
        for name in list(children.pids):
            children.kill(name)


def tail(home: Path) -> str:
    """The end of the server's log."""
    return (home / "server.log").read_text()[-2000:]


def restart(children: base.Children, name: str) -> None:
    """-9, and start it again."""
    if children.ended(name) is None:
        children.kill(name)
        children.start(name)


class EveryFewSeconds:
    """Kills whom chance chooses, as often as wanted on average: the server, a node, or a node's worker."""

    def __init__(self, every: float, chance: random.Random, started: Callable[[str], object]) -> None:
        self._every, self._chance, self._say = every, chance, started
        self._next, self._round = time.monotonic() + every, 0
        self.struck: dict[str, int] = {}

    def __call__(self, children: base.Children, closed: int) -> None:
        if time.monotonic() < self._next:
            return
        silos = sorted(set(children.makers) - {"server"})
        whom = self._chance.choice(("server", "node", "worker"))
        if closed != self._round:
            children.strikes.clear()  # a request that ends its worker three times is not tried again
            self._round = closed
        if whom == "worker":
            if not children.strike(silos):
                return
        else:
            restart(children, whom if whom == "server" else self._chance.choice(silos))
        base.count(self.struck, whom)
        self._say(f"{sum(self.struck.values())} kills, {closed} rounds are closed")
        self._next = time.monotonic() + self._chance.uniform(0.5, 1.5) * self._every


def soak(folder: Path, rounds: int, every: float, chance: random.Random) -> Mapping[str, Any]:
    """One undisturbed run and one with kills, compared; figures of both."""
    template = folder / "template"
    base.prepare(template, scenario(rounds))
    started = time.monotonic()
    reference = undisturbed(template, folder / "reference", rounds)
    between = time.monotonic()
    killer = EveryFewSeconds(every, chance, lambda text: print(text, file=sys.stderr, flush=True))
    result = disturbed(template, folder / "run", rounds, killer, chance)
    assert result == reference, "other releases, ledgers or support set than in the undisturbed run"
    return {
        "rounds": rounds,
        "silos": SILOS,
        "kills": sum(killer.struck.values()),
        "struck": dict(sorted(killer.struck.items())),
        "support set": result["dataset"],
        "the same as undisturbed": True,
        "reservations of each silo": 1,
        "seconds in one process, undisturbed": round(between - started),
        "seconds over the exchange, with kills": round(time.monotonic() - between),
    }


class Away(EveryFewSeconds):
    """Silos whom chance chooses are gone for a while, one at a time, and sometimes the server is killed."""

    def __init__(self, every: float, chance: random.Random, started: Callable[[str], object]) -> None:
        super().__init__(every, chance, started)
        self._away: dict[str, float] = {}

    def __call__(self, children: base.Children, closed: int) -> None:
        for name in [name for name, until in self._away.items() if time.monotonic() >= until]:
            children.start(name)
            del self._away[name]
        if time.monotonic() < self._next or closed == 0:
            return
        if self._chance.random() < 0.3:
            restart(children, "server")
            base.count(self.struck, "server")
        elif not self._away:
            silo = self._chance.choice(sorted(set(children.makers) - {"server"}))
            children.kill(silo)
            self._away[silo] = time.monotonic() + self._chance.uniform(0.0, 4.0) * self._every
            base.count(self.struck, "node")
        self._say(f"{sum(self.struck.values())} kills, {closed} rounds are closed")
        self._next = time.monotonic() + self._chance.uniform(0.5, 1.5) * self._every


def soak_skipping(folder: Path, rounds: int, every: float, chance: random.Random) -> Mapping[str, Any]:
    """One run by the rule `skip`: nobody can say beforehand who is in which round, but what must hold in any run."""
    from dpdd.client.silo import Silo
    from dpdd.common.progress import Console
    from dpdd.common.synthesis.runner import SynthesisRunner
    from dpdd.server.cli import main as server
    from dpdd.server.transport.coordinator import Coordinator
    from dpdd.server.transport.running import build

    template, home = folder / "template", folder / "run"
    base.prepare(template, scenario(rounds, exchange='dropouts = "skip"\nround_minutes = 0.05'))
    killer = Away(every, chance, lambda text: print(text, file=sys.stderr, flush=True))
    started = time.monotonic()
    run(template, home, killer, chance)
    seconds = round(time.monotonic() - started)
    with contextlib.redirect_stdout(io.StringIO()):
        assert server(["verify", str(home / "run")]) == 0
    for path in sorted((home / "silos").iterdir()):
        ledger = Silo(path).ledger()
        entries = ledger.entries()
        ledger.close()
        for kind, most in {"reserve": 1, "stage": rounds - 1, "commit": rounds}.items():
            requests = [entry.request_id for entry in entries if entry.kind == kind]
            assert len(set(requests)) == len(requests) <= most, (path.name, kind)
    metrics = json.loads((home / "run" / "metrics.json").read_text())
    coordinator = Coordinator(home / "coordinator")
    again = build(coordinator, home / "run", Console(quiet=True), SynthesisRunner())
    coordinator.close()
    assert again["dataset"]["sha256"] == metrics["dataset"]["sha256"], "made again it is another set"
    return {
        "rounds": rounds,
        "kills": dict(sorted(killer.struck.items())),
        "took part": metrics["rounds"]["took_part"],
        "verified, and made again the same": True,
        "seconds": seconds,
    }


class AtChosenPoints:
    """Kills as a list says: whom, when how many rounds are closed."""

    POINTS = (
        (1, ("server",)),
        (2, ("worker",)),
        (3, ("east",)),
        (5, ("server",)),
        (6, ("worker",)),
        (7, ("server", "east", "north", "south")),
    )

    def __init__(self) -> None:
        self._left = list(self.POINTS)
        self.struck: dict[str, int] = {}

    def __call__(self, children: base.Children, closed: int) -> None:
        while self._left and closed >= self._left[0][0]:
            _, names = self._left[0]
            if names == ("worker",):
                if not children.strike(sorted(set(children.makers) - {"server"})):
                    return
            else:
                for name in names:
                    restart(children, name)
            for name in names:
                base.count(self.struck, name)
            self._left.pop(0)


def main(folder: Path) -> None:
    """A dozen rounds, with kills at chosen points."""
    base.warm_up()
    template, rounds, chosen = folder / "template", 12, AtChosenPoints()
    base.prepare(template, scenario(rounds, rate=1.0))
    reference = undisturbed(template, folder / "reference", rounds)
    result = disturbed(template, folder / "run", rounds, chosen, random.Random(1))
    assert result == reference, "other releases, ledgers or support set than in the undisturbed run"
    print(json.dumps({"rounds": rounds, "struck": dict(sorted(chosen.struck.items()))}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
