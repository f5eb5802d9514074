"""A standing server: real processes on loopback, several runs over its life, killed and started again in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dpdd.client.silo import Silo
from dpdd.client.transport.join import join
from dpdd.common.errors import ConfigError
from dpdd.common.progress import Console
from dpdd.scenarios.simulator.silos import set_up
from dpdd.server.cli import main as server
from dpdd.server.run.scenario import load_scenario
from dpdd.server.transport.coordinator import Coordinator
from dpdd.server.transport.current_run import CurrentRun
from dpdd.server.transport.request_queue import RequestQueue, RunEnded
from dpdd.server.transport.submitted import MOST_ATTEMPTS, SubmittedRuns
from tests.client.silos import make_request
from tests.scenarios.tiny_runs import tiny_scenario
from tests.server.transport.worlds import entries, until, world
from tests.server.transport.worlds import running as node_of


def scenario(folder: Path, name: str, steps: int = 2, epsilon: float = 2.0, more: str = "") -> Path:
    path = folder / f"{name}.toml"
    text = tiny_scenario(2, steps, f"[exchange]\ndeadline_minutes = 3\nrehearsal_minutes = 0.01\n{more}")
    path.write_text(text.replace('"tiny"', f'"{name}"').replace("epsilon = 10.0", f"epsilon = {epsilon}"))
    return path


@contextmanager
def standing(home: Path, port: int = 0, join_port: int = 0) -> Iterator[subprocess.Popen[bytes]]:
    command = ["serve", "--coordinator", str(home), "--port", str(port), "--join-port", str(join_port)]
    with (home.parent / "serve.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "dpdd.server.cli", *command, "--workers", "1"],
            stderr=log,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(30)


def where(home: Path, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Where this very process listens, once it does."""
    coordinator = Coordinator(home)
    try:

        def up() -> bool:
            assert process.poll() is None, (home.parent / "serve.log").read_text()
            found = coordinator.serving()
            return found is not None and found["pid"] == process.pid

        until(up, 60.0)
        found = coordinator.serving()
        assert found is not None
        return found
    finally:
        coordinator.close()


def queue_of(home: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[str, str]]:
    capsys.readouterr()
    assert server(["status", "--coordinator", str(home), "--json"]) == 0
    return {run["name"]: (run["state"], run["sentence"]) for run in json.loads(capsys.readouterr().out)["queue"]}


def test_runs_are_worked_off_and_survive_a_kill(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "hub"
    coordinator = Coordinator.initialise(home)
    big = scenario(tmp_path, "budget", epsilon=9.0)  # gives the silos' budget
    silos = set_up(load_scenario(str(big)), tmp_path / "simulated", Console(quiet=True))
    tokens = {silo.settings.name: coordinator.enrol(silo.settings.name) for silo in silos}
    coordinator.close()

    def submit(path: Path, *options: str) -> str:
        capsys.readouterr()
        assert server(["submit", str(path), "--coordinator", str(home), *options]) == 0
        return capsys.readouterr().out

    def reached(name: str, state: str) -> Callable[[], bool]:
        return lambda: queue_of(home, capsys).get(name, ("",))[0] == state

    assert "nobody serves now" in submit(scenario(tmp_path, "first"))
    with standing(home) as process:
        listens = where(home, process)
        for silo in silos:
            join(silo, f"127.0.0.1:{listens['join_port']}", tokens[silo.settings.name])
        north, east = (Silo(silo.folder) for silo in silos)
        with node_of(north), node_of(east):
            until(reached("first", "done"), 90.0)
            too_much = submit(scenario(tmp_path, "too-much", epsilon=30.0))
            assert "nobody serves" not in too_much and "none before it" in too_much
            slow = scenario(tmp_path, "slow", steps=100_000)  # long enough to be killed in the middle
            submit(slow)
            submit(scenario(tmp_path, "last"), "--no-rehearsal", "--out", str(tmp_path / "elsewhere"))
            assert server(["submit", str(slow), "--coordinator", str(home)]) == 3
            assert "in the queue already" in capsys.readouterr().err
            assert server(["run", str(slow), "--coordinator", str(home)]) == 3
            assert "dpdd-server submit" in capsys.readouterr().err
            until(reached("slow", "running"), 60.0)
            state, sentence = queue_of(home, capsys)["too-much"]
            assert state == "failed" and "0 of 2 silos would answer" in sentence
            until(lambda: all(entries(silo).count("commit") == 2 for silo in (north, east)), 60.0)
            process.kill()
            process.wait(30)
            slow_copy = home / "runs" / "slow" / "scenario.toml"  # of which the synthesis may change
            slow_copy.write_text(slow_copy.read_text().replace("steps = 100000", "steps = 2"))
            with standing(home, listens["port"], listens["join_port"]) as again:
                where(home, again)
                until(reached("last", "done"), 120.0)
                assert {name: state for name, (state, _) in queue_of(home, capsys).items()} == {
                    "first": "done",
                    "too-much": "failed",
                    "slow": "done",
                    "last": "done",
                }
                threads = int(os.popen(f"ls /proc/{again.pid}/task | wc -l").read())
                again.send_signal(signal.SIGTERM)
                assert again.wait(30) == 0 and threads < 200
    for silo in (north, east):  # each run was paid once
        assert entries(silo) == ["open"] + ["reserve", "commit"] * 3
    for folder in (home / "runs" / "first", home / "runs" / "slow", tmp_path / "elsewhere"):
        assert server(["verify", str(folder)]) == 0
    assert "stopped; runs that are not done go on" in (tmp_path / "serve.log").read_text()


def test_the_queue_of_runs_is_durable_and_gives_up_what_kills_the_server(tmp_path: Path) -> None:
    runs = SubmittedRuns(tmp_path / "runs.sqlite")
    first = runs.submit("first", tmp_path / "a")
    second = runs.submit("second", tmp_path / "b", rehearsal=False, deadline_minutes=2.0)
    with pytest.raises(ConfigError, match="in the queue already"):
        runs.submit("first", tmp_path / "a")
    for attempt in range(MOST_ATTEMPTS):
        taken = runs.take_next()
        assert taken is not None and taken.number == first.number and taken.attempts == attempt
        runs.close()  # and the server dies
        runs = SubmittedRuns(tmp_path / "runs.sqlite")
    taken = runs.take_next()
    assert taken is not None and taken.number == second.number
    assert (taken.rehearsal, taken.deadline_minutes) == (False, 2.0)
    assert runs.runs()[0].state == "failed" and "died 3 times" in runs.runs()[0].sentence
    runs.put_back(taken)  # a server that stops in good order does not count
    third = runs.submit("third", tmp_path / "a")  # a run that failed may be tried again
    for _ in range(2 * MOST_ATTEMPTS):
        again = runs.take_next()
        assert again is not None and again.number == second.number
        runs.put_back(again)
    taken = runs.take_next()
    assert taken is not None
    runs.done(taken)
    last = runs.take_next()
    assert last is not None and last.number == third.number
    runs.failed(last, "because")
    assert runs.take_next() is None
    assert [(run.state, run.sentence) for run in runs.runs()][1:] == [("done", ""), ("failed", "because")]
    runs.close()


def test_between_runs_nothing_is_open_and_silos_stay_connected(tmp_path: Path) -> None:
    with world(tmp_path) as here:
        silo = here.silo("north", epsilon=4.0)
        with node_of(silo) as node:
            first = here.ask(silo, request=make_request(run="first"))
            until(lambda: here.queue.digest(first.id, "north"))
            channel = node._channel
            here.server.switch(None)
            here.queue.close()
            with pytest.raises(RunEnded):
                here.queue.row(first.id, "north")
            other = RequestQueue(tmp_path / "other" / "store")
            try:
                here.server.switch(other)
                second = make_request(run="second")
                other.ask(second.id, second.encode(), ["north"])
                until(lambda: other.digest(second.id, "north"))
                assert node._channel is channel and channel is not None  # the same connection served both
            finally:
                here.server.switch(None)
                other.close()
        assert entries(silo) == ["open", "reserve", "commit", "reserve", "commit"]


def test_what_waits_for_an_operator_is_forgotten_with_its_run(tmp_path: Path) -> None:
    """Else an approval after the run's end would spend for nobody."""
    with world(tmp_path) as here:
        silo = here.silo("north", approval="ask")
        with node_of(silo) as node:
            request = here.ask(silo)
            until(lambda: request.id in node._undecided)
            here.server.switch(None)
            here.queue.close()
            until(lambda: not node._undecided)
            ledger = silo.ledger()
            ledger.note("approve", request.id)
            ledger.close()
            until(lambda: node._channel is not None)
            here.queue = RequestQueue(tmp_path / "run" / "store")
            here.server.switch(here.queue)
            assert entries(silo) == ["open", "approve"]
            here.ask(silo)
            until(lambda: here.queue.digest(request.id, "north"))


def test_there_is_a_current_run_or_none(tmp_path: Path) -> None:
    told: list[str] = []
    current = CurrentRun(news=lambda: told.append("news"))
    assert current.now is None
    with pytest.raises(RunEnded):
        current.queue()
    queue = RequestQueue(tmp_path / "store")
    current.switch(queue)
    assert current.now is queue and current.queue() is queue
    queue.close()
    queue.close()
    for use in (lambda: queue.open_for("north"), lambda: queue.read("00"), lambda: queue.digest("00", "north")):
        with pytest.raises(RunEnded):
            use()
