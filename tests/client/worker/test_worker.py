"""Records are read in a process of its own, which has neither key nor ledger, and is believed nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dpdd.client.answering import Assignment
from dpdd.client.silo import Silo
from dpdd.client.worker import jobs
from dpdd.client.worker.endings import WorkerEnded
from dpdd.client.worker.worker import Worker
from dpdd.common.errors import DataError, DpddError, IntegrityError
from dpdd.common.methods.request_plan import planned, settings_of
from dpdd.common.wire.answer import SignedReleaseBytes
from dpdd.common.wire.release import open_signed
from tests.client.silos import make_request
from tests.client.worker.forked import children
from tests.client.worker.planted import RECORD, planted_method, planted_request, planted_silo, planted_worker
from tests.server.transport.worlds import entries, until

__all__ = ["planted_method"]
pytestmark = pytest.mark.usefixtures("planted_method")


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with planted_worker() as a_worker:
        yield a_worker


def gone(pid: int) -> bool:
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def test_the_worker_makes_the_release_that_the_silo_would_have_made(tmp_path: Path, worker: Worker) -> None:
    """With noise from a seed, to the last bit; the silo signs it, and pays as ever."""
    silo, request = planted_silo(tmp_path / "north", worker), make_request()
    with (silo.folder / "silo.toml").open("a") as file:
        file.write("[simulation]\nnoise_seed = 7\n")
    copy = tmp_path / "copy" / "north"
    copy.mkdir(parents=True)
    for name in ("silo.toml", "records.npz"):
        (copy / name).write_bytes((silo.folder / name).read_bytes())
    seen: list[str] = []
    answers = [
        Silo(silo.folder, worker).answer(request.encode(), lambda what, *_: seen.append(what)),
        Silo.initialise(copy).answer(request.encode()),
    ]
    assert all(isinstance(answer, SignedReleaseBytes) for answer in answers)
    one, other = (open_signed(answer.data) for answer in answers)  # type: ignore[union-attr]
    assert one.arrays.keys() == other.arrays.keys() == {"embedding", "count"}
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(array, other.arrays[name])
    assert (one.event, one.distance, one.software) == (other.event, other.distance, other.software)
    assert entries(silo) == ["open", "reserve", "commit"]
    assert {"reserving", "reading", "summing statistics", "adding noise", "committing"} <= set(seen)
    assert worker.last is not None and worker.last.peak > 0


def test_the_worker_has_neither_key_nor_ledger_nor_anybodys_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPDD_PASSPHRASE_FILE", "/somewhere")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", "/somewhere/else")
    monkeypatch.setenv("SOME_TOKEN", "secret")
    with planted_worker() as worker, (tmp_path / "open").open("w") as ours:
        os.set_inheritable(ours.fileno(), True)
        silo = planted_silo(tmp_path / "north", worker)
        with pytest.raises(DataError) as error:
            silo.answer(planted_request("look around").encode())
    seen = json.loads(str(error.value))
    kept = {number: what for number, what in seen["descriptors"].items() if not what.endswith(".npz")}
    assert sorted(kept.values())[:3] == ["/dev/null"] * 3
    assert [what.partition(":")[0] for what in kept.values() if what != "/dev/null"] == ["socket"], kept
    assert not {"DPDD_PASSPHRASE_FILE", "CREDENTIALS_DIRECTORY", "SOME_TOKEN"} & set(seen["environment"])


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        ("garbage", "no release"),
        ("another silo", "states something else"),
        ("another event", "another event"),
        ("seeded noise", "another source"),
        ("another array", "other arrays"),
        ("a larger array", "other arrays"),
        ("too much", "no message"),
    ],
)
def test_a_worker_that_lies_is_not_believed(tmp_path: Path, worker: Worker, lie: str, why: str) -> None:
    silo = planted_silo(tmp_path / "north", worker)
    with pytest.raises(IntegrityError, match=why):
        silo.answer(planted_request(lie).encode())
    assert silo.outbox.ids() == [] and entries(silo) == ["open", "reserve"]
    assert isinstance(silo.answer(planted_request("nothing", "next").encode()), SignedReleaseBytes)


def test_a_foreign_errors_text_does_not_leave_the_worker(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with planted_worker() as worker:  # which has this test's stderr
        silo = planted_silo(tmp_path / "north", worker)
        with pytest.raises(WorkerEnded, match="ValueError, whose text is left out") as error:
            silo.answer(planted_request("quote").encode())
        assert "in misbehave" in error.value.where and RECORD not in error.value.where  # the place, for the operator
        assert isinstance(silo.answer(planted_request("print", "second").encode()), SignedReleaseBytes)
    assert RECORD not in "".join(capfd.readouterr())


def test_an_error_of_ours_arrives_as_what_it_was(tmp_path: Path, worker: Worker) -> None:
    silo = planted_silo(tmp_path / "north", worker)
    (silo.folder / "records.npz").write_bytes(b"no longer records")
    with pytest.raises(DataError, match=r"north/records\.npz"):
        silo.answer(planted_request("nothing").encode())


@pytest.mark.parametrize("victim", ["supervisor", "node"])
def test_a_worker_ends_with_those_that_it_works_for(tmp_path: Path, victim: str) -> None:
    with planted_worker() as worker:
        silo, failed = planted_silo(tmp_path / "north", worker), []

        def ask() -> None:
            try:
                silo.answer(planted_request("sleep").encode())
            except DpddError as error:
                failed.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        assert worker._process is not None and worker._control is not None
        supervisor = worker._process.pid
        until(lambda: entries(silo) == ["open", "reserve"])  # planned, by a worker before
        until(lambda: children(supervisor))
        (pid,) = children(supervisor)
        if victim == "supervisor":
            os.kill(supervisor, signal.SIGKILL)
        else:  # which is what its end does, however it comes
            worker._control.shutdown(2)
        until(lambda: gone(pid))
        asking.join(60.0)
        until(lambda: gone(supervisor))
    assert isinstance(failed[0], WorkerEnded) and failed[0].end == "gone"
    assert entries(silo) == ["open", "reserve"]


def test_a_node_that_stops_does_not_wait_for_its_worker_nor_blames_the_request(tmp_path: Path) -> None:
    with planted_worker() as worker:
        silo, failed = planted_silo(tmp_path / "north", worker), []

        def ask() -> None:
            try:
                silo.answer(planted_request("sleep").encode())
            except WorkerEnded as error:
                failed.append(error.end)

        asking = threading.Thread(target=ask)
        asking.start()
        until(lambda: entries(silo) == ["open", "reserve"])
        worker.close()
        asking.join(60.0)
    assert failed == ["stopped"] and not (silo.folder / "state" / "deaths").exists()
    with pytest.raises(WorkerEnded, match="the node stops"):
        silo.answer(planted_request("nothing").encode())


def test_an_assignment_says_the_same_in_the_worker(tmp_path: Path, worker: Worker) -> None:
    """With everything that may be in one: a holdout, public counts, a plan of several stages."""
    silo = planted_silo(tmp_path / "north", worker, policy="public_counts = { ant = 1, bee = 2, cat = 3 }")
    request = make_request(method="sps", settings={"features": 4, "picture": 2, "stages": 2})
    plan = planned(request, settings_of(request))
    for key in (None, bytes(range(32))):
        assignment = Assignment(silo.folder, silo.settings, request, plan, "ab" * 32, key)
        header = json.loads(json.dumps(jobs.assignment_to_json(assignment)))
        assert jobs.assignment_from_json(header, request.encode()) == assignment
    assert plan.whole is not None and assignment.stated["public_counts"] == (1, 2, 3)


def test_what_a_worker_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with planted_worker() as worker:
        silo = planted_silo(tmp_path / "north", worker)
        assert isinstance(silo.answer(planted_request("leave a process behind").encode()), SignedReleaseBytes)
        until(lambda: gone(int((tmp_path / "left").read_text())))


def test_without_isolation_the_silo_reads_by_itself(tmp_path: Path, worker: Worker) -> None:
    silo = planted_silo(tmp_path / "north", worker, section="isolation = false")
    before = worker.last
    assert isinstance(silo.answer(planted_request("nothing").encode()), SignedReleaseBytes)
    assert worker.last is before


def test_a_worker_leaves_no_core() -> None:
    """Nor does anything that it starts: a core would be a copy of the records."""
    code = (
        "import resource; from dpdd.client.worker.limits import Limits; Limits(60.0, 1 << 40).apply(); "
        "print(resource.getrlimit(resource.RLIMIT_CORE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "(0, 0)\n", done
