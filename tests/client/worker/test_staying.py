"""A worker that stays for the rounds of a run: what it keeps, for whom, how long, and under which limits."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpdd.client.answering import Assignment
from dpdd.client.silo import Silo
from dpdd.client.worker import jobs, supervisor
from dpdd.client.worker.endings import WorkerEnded
from dpdd.client.worker.frames import Kind, frame
from dpdd.client.worker.limits import Limits, cpu_seconds_of
from dpdd.client.worker.worker import Worker
from dpdd.common.methods.registry import method
from dpdd.common.progress import silent
from dpdd.common.wire.answer import SignedReleaseBytes
from dpdd.common.wire.release import Release, open_signed
from dpdd.common.wire.request import ReleaseRequest
from tests.client.silos import make_request, make_silo
from tests.client.worker.forked import children

ROUNDS = 4
SETTINGS = {"steps": ROUNDS, "rate": 1.0, "support_per_class": 1}
ANY = Limits(600.0, 1 << 40)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as a_worker:
        yield a_worker


def silo_in(folder: Path, worker: Worker | None, seed: int | None = 7) -> Silo:
    text = "" if seed is None else f"[simulation]\nnoise_seed = {seed}\n"
    make_silo(folder, epsilon=4.0, extra=text)
    path = folder / "silo.toml"
    path.write_text(path.read_text().replace('methods = ["dp-merf"]', 'methods = ["dp-kip", "dp-merf"]'))
    return Silo(folder, worker)


def requests(run: str = "test") -> list[ReleaseRequest]:
    """One for each round; where they lead is of no interest here."""
    first = make_request(run, method="dp-kip", settings=method("dp-kip").settings(SETTINGS).on_wire())
    support = np.full((3, 1, 8, 8), 0.5, np.float32)
    support[:, :, 0, 0] = 0.25
    return [first, *(replace(first, stage=k, stage_input={"support": support}) for k in range(1, ROUNDS))]


def released(silo: Silo, asked: Sequence[ReleaseRequest]) -> list[Release]:
    answers = [silo.answer(request.encode()) for request in asked]
    assert all(isinstance(answer, SignedReleaseBytes) for answer in answers), answers
    return [open_signed(answer.data, silo.public_key) for answer in answers]  # type: ignore[union-attr]


def supervised(worker: Worker) -> list[int]:
    assert worker._process is not None
    return children(worker._process.pid)


def test_one_worker_answers_all_rounds_as_the_silo_would_and_opens_the_records_once(
    tmp_path: Path, worker: Worker
) -> None:
    silo, alone = silo_in(tmp_path / "north", worker), silo_in(tmp_path / "alone" / "north", None)
    first, *others = requests()
    one = released(silo, [first])
    (pid,) = supervised(worker)
    records = silo.folder / "records.npz"
    records.rename(tmp_path / "moved.npz")
    one += released(silo, others)
    assert supervised(worker) == [pid], "the worker of the first round answered the others"
    for release, other in zip(one, released(alone, [first, *others]), strict=True):
        assert (release.request_id, release.event) == (other.request_id, other.event)
        np.testing.assert_array_equal(release.arrays["gradient"], other.arrays["gradient"])
    with pytest.raises(Exception, match=r"records\.npz"):
        released(silo, requests("another-run"))
    assert pid not in supervised(worker), "records are open for one run alone"


def test_samples_and_noise_are_fresh_in_every_round(tmp_path: Path, worker: Worker) -> None:
    one, other = silo_in(tmp_path / "one", worker, None), silo_in(tmp_path / "two", worker, None)
    found = [release.arrays["gradient"].tobytes() for silo in (one, other) for release in released(silo, requests())]
    assert len(set(found)) == 2 * ROUNDS, "the same records and requests, and no two answers alike"


def test_another_job_sends_it_away_and_so_does_silence(
    tmp_path: Path, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    silo = silo_in(tmp_path / "north", worker)
    first, second, third, _ = requests()
    released(silo, [first])
    (pid,) = supervised(worker)
    released(silo, [make_request("one-shot")])
    assert supervised(worker) == []
    released(silo, [second])
    (again,) = supervised(worker)
    assert again != pid
    os.kill(again, 9)
    worker._control and select.select([worker._control], [], [], 60.0)  # the supervisor says that it is gone
    released(silo, [third])
    assert again not in supervised(worker)


def test_who_speaks_out_of_turn_is_not_listened_to(tmp_path: Path, worker: Worker) -> None:
    """A result for a round that was not asked yet waits in the channel: it is not taken for the next one's."""
    silo = silo_in(tmp_path / "north", worker)
    first, second, *_ = requests()
    released(silo, [first])
    (pid,) = supervised(worker)
    near, far = socket.socketpair()
    with far:
        assert worker._staying is not None
        kept = worker._staying.channel
        worker._staying = replace(worker._staying, channel=near)
        far.sendall(frame(Kind.RESULT, b"early"))
        (release,) = released(silo, [second])
    kept.close()
    assert release.request_id == second.id and pid not in supervised(worker)


def test_a_worker_stays_only_so_long() -> None:
    near, far = socket.socketpair()
    with near, far:
        near.settimeout(60.0)
        far.sendall(jobs.message_of("plan", {}, b"no request"))
        received = jobs._received(near)
        next(received)
        assert near.gettimeout() is None
        near_timeout = jobs.STAY_SECONDS
        try:
            jobs.STAY_SECONDS = 0.01
            assert list(received) == []
        finally:
            jobs.STAY_SECONDS = near_timeout


def watched(limits: Limits, *, again_after: float) -> dict[str, object]:
    """How a process ends that does nothing but count, when one more job is announced after so many CPU seconds."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        if (pid := os.fork()) == 0:
            os.setsid()
            while True:
                pass

        def announce() -> None:
            while 0.0 <= cpu_seconds_of(pid) < again_after:
                threading.Event().wait(0.01)
            far.sendall(supervisor.AGAIN)

        thread = threading.Thread(target=announce)
        thread.start()
        ended = supervisor._watch(pid, limits, True, near)
        thread.join()
    assert ended is not None
    return ended


def test_cpu_time_is_limited_for_each_round() -> None:
    ended = watched(Limits(600.0, 1 << 40, cpu_seconds=1), again_after=0.7)
    assert ended["end"] is supervisor.End.CPU
    assert float(str(ended["cpu"])) > 1.6, "the first job's time does not count for the second"


def test_the_limits_of_a_round_are_told_as_ever(tmp_path: Path, worker: Worker) -> None:
    """What ends it ends one round; the next try has a worker of its own."""
    silo = silo_in(tmp_path / "north", worker)
    first, *_ = requests()
    settings, plan = silo.plan(first)
    assert settings is not None
    assignment = Assignment(silo.folder, silo.settings, first, plan, "00" * 32)
    with pytest.raises(WorkerEnded, match="ended without an answer"):
        worker.make(assignment, Limits(600.0, 1 << 26), silent)
    assert worker.make(assignment, ANY, silent).request_id == first.id
