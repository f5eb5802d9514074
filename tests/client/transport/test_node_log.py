"""What a silo's node keeps in its log, and that one node at a time answers for a silo."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpdd.client.cli import main
from dpdd.client.durable import only_one
from dpdd.client.transport import node_log
from dpdd.client.transport.node_log import keep_log
from dpdd.common.errors import ConfigError
from tests.client.silos import make_request
from tests.server.transport.worlds import running, until, world


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    log = logging.getLogger("dpdd")
    before = log.handlers[:], log.level, log.propagate
    yield
    for handler in log.handlers:
        handler.close()
    log.handlers[:], log.level, log.propagate = before


def test_what_was_asked_answered_and_refused_is_kept_and_what_went_wrong_with_its_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpdd.client.transport.node.ATTEMPTS", 1)
    with world(tmp_path) as here:
        silo = here.silo("north")
        keep_log(silo.node_log)
        with running(silo):
            good, refused, broken = make_request(), make_request(run="other", method="sps"), make_request(run="third")
            here.ask(silo, request=good)
            until(lambda: here.queue.digest(good.id, "north"))
            here.ask(silo, request=refused)
            until(lambda: (row := here.queue.row(refused.id, "north")) and row.state == "refused")
            (silo.folder / "records.npz").write_bytes(b"no longer records")
            text = (silo.folder / "silo.toml").read_text().replace("epsilon = 1.0", "epsilon = 9.0")
            (silo.folder / "silo.toml").write_text(text)
            assert main(["budget", "--accept-change", "--silo", str(silo.folder)]) == 0
            here.ask(silo, request=broken)
            until(lambda: (row := here.queue.row(broken.id, "north")) and row.state == "in trouble")
    log = silo.node_log.read_text()
    assert f"request {good.id[:12]}: run test asks for statistics by dp-merf, ε = 1, δ = 1e-05" in log
    assert f"request {good.id[:12]}: the coordinator has the release" in log
    assert f"request {refused.id[:12]}: refused (not allowed)" in log
    assert "ERROR no answer to the coordinator" in log and "Traceback" in log and "DataError" in log
    shown = capsys.readouterr().err
    assert "no answer to the coordinator" in shown and "Traceback" not in shown


def test_the_log_is_its_owners_and_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_log, "LOG_BYTES", 2000)
    path = tmp_path / "node.log"
    path.write_text("from an older version\n")
    path.chmod(0o644)
    keep_log(path)
    assert path.stat().st_mode & 0o777 == 0o600
    umask = os.umask(0)
    try:
        for number in range(500):
            logging.getLogger("dpdd.node").info("request %d", number)
    finally:
        os.umask(umask)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 1 + node_log.OLD_LOGS and sum(file.stat().st_size for file in files) <= 5 * 2000
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)
    assert path.read_text().endswith("request 499\n")


def test_a_message_is_one_line_whatever_is_in_it(tmp_path: Path) -> None:
    keep_log(tmp_path / "node.log")
    logging.getLogger("dpdd.node").info("refused: %s", "a\n2026-01-01 00:00:00,000 INFO forged\x1b[2J")
    assert len((tmp_path / "node.log").read_text().splitlines()) == 1


def test_one_node_at_a_time_answers_for_a_silo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second says so at once, other commands work beside the first, and a killed one leaves nothing locked."""
    with world(tmp_path) as here:
        silo = here.silo("north")
        command = [sys.executable, "-m", "dpdd.client.cli", "run", "--silo", str(silo.folder)]
        first = subprocess.Popen([*command, "--address", f"127.0.0.1:{here.port}"], stderr=subprocess.PIPE, text=True)
        try:
            until(lambda: silo.node_lock.exists() and silo.node_lock.read_text().strip() == str(first.pid), 60.0)
            assert main(["run", "--silo", str(silo.folder)]) == 3
            error = capsys.readouterr().err
            assert f"process {first.pid} runs `dpdd-client run` on this silo already" in error
            assert len(error.splitlines()) == 1
            assert main(["budget", "--silo", str(silo.folder)]) == 0
            request = tmp_path / "x.request"
            request.write_bytes(make_request().encode())
            answer = ["answer", str(request), "--silo", str(silo.folder), "--out", str(tmp_path / "x.release")]
            assert main(answer) == 0
            assert first.stderr is not None and f"kept in {silo.node_log}" in first.stderr.readline()
        finally:
            first.send_signal(signal.SIGKILL)
            first.communicate()
        with only_one(silo.node_lock, "tries"):
            assert silo.node_lock.read_text().strip() == str(os.getpid())


def test_a_lock_without_a_name_in_it_is_still_a_lock(tmp_path: Path) -> None:
    lock = tmp_path / "silo" / "state" / "node.lock"
    lock.parent.mkdir(parents=True)
    hold = (
        "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.lockf(file, fcntl.LOCK_EX); "
        "print('held', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", hold, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match="another process sings already"), only_one(lock, "sings"):
            raise AssertionError("both hold it")
    finally:
        process.communicate("")
