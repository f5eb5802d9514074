"""The commands of coordinator and operator, and the whole of them as processes on loopback."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from dpdd.client.cli import main as client
from dpdd.client.silo import Silo
from dpdd.client.transport.join import _join_request
from dpdd.common.errors import ConfigError
from dpdd.common.progress import Console
from dpdd.common.wire.exchange import Token
from dpdd.scenarios.simulator import loopback, simulate
from dpdd.scenarios.simulator.silos import set_up
from dpdd.scenarios.simulator.simulation import Simulation
from dpdd.server.cli import main as server
from dpdd.server.commands import runs
from dpdd.server.report.summary import summary
from dpdd.server.run.scenario import load_scenario
from dpdd.server.transport import authority, running, tls_log
from dpdd.server.transport.coordinator import Coordinator
from dpdd.server.transport.request_queue import RequestQueue
from dpdd.server.transport.service import Address, ExchangeServer
from dpdd.v1 import exchange_pb2
from tests.client.silos import make_silo
from tests.scenarios.tiny_runs import tiny_scenario
from tests.server.transport.worlds import entries, until
from tests.server.transport.worlds import running as node_of


def scenario(folder: Path, silos: int = 2, quorum: int = 1, minutes: float = 5.0) -> Path:
    path = folder / "tiny.toml"
    exchange = f"[exchange]\nquorum = {quorum}\ndeadline_minutes = {minutes}\nrehearsal_minutes = 0.01\n"
    path.write_text(tiny_scenario(silos, steps=2, more=exchange))
    return path


def said(capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    out, err = capsys.readouterr()
    return out if code == 0 else err


def failed(capsys: pytest.CaptureFixture[str], run: object, *arguments: object) -> str:
    code = run([str(argument) for argument in arguments])  # type: ignore[operator]
    _, err = capsys.readouterr()
    assert code not in (0, 70) and len(err.splitlines()) == 1, err
    return err


def test_from_init_to_an_exported_dataset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three silos are enrolled, join and answer, one of them late; the dataset is built, exported and verified."""
    home = tmp_path / "hub"
    assert server(["init", str(home)]) == 0 and "made an authority" in said(capsys)
    assert server(["init", str(home)]) == 0 and "are there" in said(capsys)
    path = scenario(tmp_path, silos=3, quorum=2, minutes=0.15)
    silos = set_up(load_scenario(str(path)), tmp_path, Console(quiet=True))
    tokens = {}
    for silo in silos:
        assert server(["enrol", silo.settings.name, "--coordinator", str(home)]) == 0
        tokens[silo.settings.name] = said(capsys).strip()
    assert server(["status", "--coordinator", str(home)]) == 0
    assert "no run is serving" in (text := said(capsys)) and text.count("enrolled") == 3

    metrics: dict[str, object] = {}
    errors: list[BaseException] = []

    def coordinate(minutes: float | None) -> None:
        own = Coordinator(home)
        try:
            out = home / "runs" / "tiny"
            metrics.update(
                running.run(own, path, out, Console(quiet=True), address=Address(), deadline_minutes=minutes)
            )
        except BaseException as error:
            errors.append(error)
        finally:
            own.close()

    thread = threading.Thread(target=coordinate, args=(5.0,))
    thread.start()
    watch = Coordinator(home)
    until(lambda: watch.serving() is not None or errors, 60.0)
    assert not errors, errors
    where = watch.serving()
    assert where is not None
    for silo in silos:
        monkeypatch.setattr(sys, "stdin", io.StringIO(tokens[silo.settings.name] + "\n"))
        assert client(["join", f"127.0.0.1:{where['join_port']}", "-", "--silo", str(silo.folder)]) == 0
        assert "joined the coordinator" in said(capsys)
    silos = [Silo(silo.folder) for silo in silos]
    address = f"127.0.0.1:{where['port']}"
    run = home / "runs" / "tiny"
    with node_of(silos[0], address=address), node_of(silos[1], address=address):
        until(lambda: sum(len(entries(silo)) == 3 for silo in silos) == 2, 60.0)
        assert server(["status", str(run), "--coordinator", str(home), "--json"]) == 0
        status = json.loads(said(capsys))
        assert status["serving"]["port"] == where["port"] and len(status["runs"][str(run)]) == 3
        until(lambda: sum(row["state"] == "released" for row in states(capsys, run, home)) == 2)
    assert thread.is_alive()  # it waits for the third
    (home / "runs" / "not-a-run").mkdir()
    assert server(["status", "--coordinator", str(home)]) == 0
    assert f"awaited: {silos[2].settings.name}" in (text := said(capsys)) and "request           stage  silo" in text
    assert {row["stage"] for row in states(capsys, run, home)} == {0}
    with node_of(silos[2], address=address):
        thread.join(90.0)
    assert not thread.is_alive() and not errors, errors
    assert [row["silo"] for row in metrics["privacy"]] == ["east", "north", "south"]  # type: ignore[union-attr, index, attr-defined]
    assert all(row["state"] == "released" for row in states(capsys, run, home))
    out = tmp_path / "published"
    assert server(["export", str(run), "--out", str(out)]) == 0
    assert server(["verify", str(out)]) == 0
    assert not list(out.glob("**/*.sqlite"))  # who verifies a published folder leaves nothing in it
    assert not list(out.glob("**/*.key")) and "there is something" in failed(
        capsys, server, "export", run, "--out", out
    )
    assert all(entries(silo) == ["open", "reserve", "commit"] for silo in silos)
    watch.close()


def states(capsys: pytest.CaptureFixture[str], run: Path, home: Path) -> list[dict[str, str]]:
    assert server(["status", str(run), "--coordinator", str(home), "--json"]) == 0
    rows: list[dict[str, str]] = json.loads(said(capsys))["runs"][str(run)]
    return rows


def test_a_run_proceeds_without_the_missing_and_resume_takes_the_late(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, path = tmp_path / "hub", scenario(tmp_path, silos=2, quorum=1, minutes=0.2)
    coordinator = Coordinator.initialise(home)
    north, east = set_up(load_scenario(str(path)), tmp_path, Console(quiet=True))
    tokens = {silo.settings.name: coordinator.enrol(silo.settings.name) for silo in (north, east)}
    out = tmp_path / "run"
    results: list[dict[str, object]] = []

    def coordinate(minutes: float | None) -> threading.Thread:
        def work() -> None:
            own = Coordinator(home)
            results.append(running.run(own, path, out, Console(), address=Address(), deadline_minutes=minutes))
            own.close()

        thread = threading.Thread(target=work)
        thread.start()
        until(lambda: coordinator.serving() is not None, 60.0)
        return thread

    from dpdd.client.transport.join import join

    thread = coordinate(0.2)
    where = coordinator.serving()
    assert where is not None
    for silo in (north, east):
        join(silo, f"127.0.0.1:{where['join_port']}", tokens[silo.settings.name])
    north, east = Silo(north.folder), Silo(east.folder)
    with node_of(north, address=f"127.0.0.1:{where['port']}"):
        thread.join(90.0)
    card = json.loads((out / "card.json").read_text())
    assert [row["silo"] for row in card["silos"]] == ["north"]
    assert "did not answer within" in json.dumps(card["silos_without_release"])
    assert "without east: did not answer" in capsys.readouterr().err
    thread = coordinate(5.0)
    where = coordinator.serving()
    assert where is not None
    with node_of(east, address=f"127.0.0.1:{where['port']}"):
        thread.join(90.0)
    card = json.loads((out / "card.json").read_text())
    assert [row["silo"] for row in card["silos"]] == ["east", "north"]
    assert entries(north) == entries(east) == ["open", "reserve", "commit"]
    assert server(["verify", str(out)]) == 0
    coordinator.close()
    command = ["dpdd.server.cli", "resume", str(out), "--coordinator", str(home), "--port", "0", "--join-port", "0"]
    again = subprocess.run([sys.executable, "-m", *command, "--quiet"], capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert again.stdout == summary(json.loads((out / "metrics.json").read_text()), out) + "\n"
    report = (out / "report.html").read_text()
    assert f"dpdd-server resume {out} --offline" in report and "report.html" in again.stdout
    assert "north" in again.stdout and f'LabelledSet.load("{out / "dataset"}")' in again.stdout


def test_commands_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "dpdd-server init" in failed(capsys, server, "enrol", "north", "--coordinator", tmp_path)
    home = tmp_path / "hub"
    assert server(["init", str(home)]) == 0
    said(capsys)
    assert "is not a name" in failed(capsys, server, "enrol", "no/rth", "--coordinator", home)
    assert "no silo 'north' is enrolled" in failed(capsys, server, "revoke", "north", "--coordinator", home)
    assert server(["enrol", "north", "--coordinator", str(home)]) == 0
    assert server(["revoke", "north", "--coordinator", str(home)]) == 0
    said(capsys)
    assert "revoked" in failed(capsys, server, "enrol", "north", "--coordinator", home)
    path = scenario(tmp_path)
    demo = ["run", path, "--coordinator", home, "--loopback-demo", "--bind", "0.0.0.0"]
    assert "127.0.0.1 and nowhere else" in failed(capsys, server, *demo)
    for minutes in (float("nan"), float("inf"), -1.0):
        with pytest.raises(ConfigError, match="0 minutes or more"):
            running.deadline_of(load_scenario(str(path)), minutes)
    assert "no run was started here" in failed(capsys, server, "resume", tmp_path / "nothing", "--coordinator", home)
    assert "there is no store" in failed(capsys, server, "status", tmp_path, "--coordinator", home)
    (home / "state" / "authority.key").chmod(0o644)
    assert "open to others" in failed(capsys, server, "status", "--coordinator", home)
    silo = make_silo(tmp_path / "north")
    assert "dpdd-client join" in failed(capsys, client, "run", "--silo", silo.folder)
    assert "whole join token" in failed(capsys, client, "join", "127.0.0.1:1", "dpdd-join-1.abc", "--silo", silo.folder)
    assert "token" in failed(capsys, client, "join", "127.0.0.1:1", "--silo", silo.folder)
    free = loopback_port()
    assert "cannot be reached" in failed(
        capsys, client, "join", f"127.0.0.1:{free}", str(Token(bytes(24), bytes(32))), "--silo", silo.folder
    )


def test_the_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = logging.getLogger("dpdd.exchange")
    before = log.handlers[:], log.level, log.propagate
    monkeypatch.setattr(runs, "LOG_BYTES", 2000)
    try:
        runs._log_to(tmp_path / "exchange.log")
        for number in range(1000):
            log.info("refused somebody for the %dth time", number)
    finally:
        log.handlers[:], log.level, log.propagate = before
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 5 * 2000
    assert "the 999th time" in (tmp_path / "exchange.log").read_text()


def test_a_server_whose_certificate_expired_says_so_before_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authority, "SERVER_DAYS", -1)
    coordinator = Coordinator.initialise(tmp_path)
    queue = RequestQueue(tmp_path / "store")
    with pytest.raises(ConfigError, match=r"certificate expired on .* makes a new one"):
        ExchangeServer(coordinator, queue, Address())
    monkeypatch.undo()
    with ExchangeServer(coordinator, queue, Address()):
        pass
    queue.close()
    coordinator.close()


def test_a_broken_standard_error_does_not_stop_the_log(caplog: pytest.LogCaptureFixture) -> None:
    reader, writer = os.pipe()
    gone, closed = os.pipe()
    os.close(gone)
    os.write(writer, b"something else\nE Handshake failed with error X: HTTP_REQUEST\n")
    os.close(writer)
    tls_log._read(reader, closed)
    os.close(closed)
    assert "it does not speak TLS" in caplog.text


def loopback_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def test_the_true_system_on_loopback_stops_what_it_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, before = scenario(tmp_path), children()
    half_joined(set_up(load_scenario(str(path)), tmp_path / "run", Console(quiet=True), 3)[0], tmp_path / "run")
    metrics = loopback.run(simulation(path, tmp_path / "run", Console(), noise_seed=3))
    relayed = capsys.readouterr().err
    assert "server   │ waiting for" in relayed and "accountant" not in relayed  # `dpdd-sim` shows the result itself
    assert [row["silo"] for row in metrics["privacy"]] == ["east", "north"]
    assert set(children()) <= set(before)  # earlier tests may have left multiprocessing's own tracker
    in_process = simulate.run(
        str(path), load_scenario(str(path)), tmp_path / "in-process", Console(quiet=True), noise_seed=3
    )
    assert in_process["dataset"] == metrics["dataset"]  # the same releases, so the same images
    assert server(["verify", str(tmp_path / "run")]) == 0


def simulation(path: Path, folder: Path, console: Console, noise_seed: int | None = None) -> Simulation:
    return Simulation(str(path), load_scenario(str(path)), folder, console, noise_seed)


def half_joined(silo: Silo, folder: Path) -> None:
    """The coordinator gave a certificate, and then the silo died before it wrote anything down."""
    coordinator = Coordinator.initialise(folder / "coordinator")
    request = _join_request(silo, ec.generate_private_key(ec.SECP256R1()), coordinator.enrol(silo.settings.name))
    coordinator.join(exchange_pb2.JoinRequest.FromString(request), 1)
    coordinator.close()


def test_loopback_stops_everything_when_interrupted_and_when_it_fails(tmp_path: Path) -> None:
    path, before = scenario(tmp_path), children()
    silos = set_up(load_scenario(str(path)), tmp_path / "run", Console(quiet=True))
    command = ["dpdd.scenarios.cli", "run", str(path), "--out", str(tmp_path / "run"), "--engine", "exchange"]
    parent = subprocess.Popen(
        [sys.executable, "-m", *command],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored where tests run in the background
    )
    until(lambda: (tmp_path / "run" / "coordinator" / "state" / "serving.json").exists(), 200.0)
    time.sleep(0.5)
    started = children(parent.pid)
    assert started
    parent.send_signal(signal.SIGINT)
    parent.communicate(timeout=60)
    assert [pid for pid in started if Path(f"/proc/{pid}").exists() and state(pid) != "Z"] == []
    toml = silos[0].folder / "silo.toml"
    toml.write_text(toml.read_text().replace("[policy]", "[policy]\nno_such_key = 1"))
    with pytest.raises(ConfigError, match="no_such_key"):
        loopback.run(simulation(path, tmp_path / "run", Console(quiet=True)))
    assert set(children()) <= set(before)


def children(pid: int | None = None) -> list[int]:
    processes = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == (pid or os.getpid()) and fields[0] != "Z":
                processes.append(int(entry.name))
    return processes


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
