"""Requests that want more of a silo's machine than its operator gives: what happens, what is said, and to whom."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dpdd.client.rehearsal import rehearse
from dpdd.client.silo import Silo
from dpdd.client.worker import worker as workers
from dpdd.client.worker.deaths import MOST_DEATHS
from dpdd.client.worker.endings import WorkerEnded
from dpdd.client.worker.worker import Worker
from dpdd.common.errors import DpddError
from dpdd.common.wire.answer import Reason, Refusal, SignedReleaseBytes
from tests.client.silos import make_request
from tests.client.worker.planted import planted_method, planted_request, planted_silo, planted_worker
from tests.server.transport.worlds import entries

__all__ = ["planted_method"]
pytestmark = pytest.mark.usefixtures("planted_method")
LEAST = 1 << 29


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with planted_worker() as a_worker:
        yield a_worker


def without(silo: Silo, *limits: str) -> None:
    """Take limits out of silo.toml: how quick a test machine is should not matter to what is not about limits."""
    text = (silo.folder / "silo.toml").read_text()
    for limit in limits:
        text = text.replace(limit, "") if limit else text
    (silo.folder / "silo.toml").write_text(text)


@pytest.mark.parametrize(
    ("what", "policy", "section", "end", "why"),
    [
        ("memory", f"most_memory = {LEAST}", "", "memory", f"more than {LEAST} bytes of memory"),
        ("memory that is not touched", f"most_memory = {LEAST}", "", "memory", f"more than {LEAST} bytes of memory"),
        ("shared memory", f"most_memory = {LEAST}", "", "memory", f"more than {LEAST} bytes of memory"),
        ("disk", "most_disk = 50_000_000", "", "disk", "more than 50000000 bytes"),
        ("loop", "most_cpu_seconds = 1", "", "cpu", "more than 1 CPU seconds"),
        ("sleep", "", "most_seconds = 0.5", "time", "more than 0.5 seconds"),
        ("kill", "", "", "killed", "somebody killed it"),
        ("exit", "", "", "exit", "with exit code 3"),
    ],
)
def test_a_request_that_takes_too_much_ends_its_worker_and_nothing_else(
    tmp_path: Path, worker: Worker, what: str, policy: str, section: str, end: str, why: str
) -> None:
    """What was reserved stays, nothing is released, the operator learns which limit it was, and the silo goes on."""
    silo = planted_silo(tmp_path / "north", worker, policy=policy, section=section)
    with pytest.raises(WorkerEnded, match=why) as error:
        silo.answer(planted_request(what).encode())
    assert error.value.end == end
    assert entries(silo) == ["open", "reserve"] and silo.outbox.ids() == []
    without(silo, policy, section)
    again = Silo(silo.folder, worker)
    assert isinstance(again.answer(planted_request("nothing", "next").encode()), SignedReleaseBytes)


def test_a_request_that_always_dies_is_not_tried_for_ever(tmp_path: Path, worker: Worker) -> None:
    silo, request = planted_silo(tmp_path / "north", worker), planted_request("exit")
    for _ in range(MOST_DEATHS):
        with pytest.raises(WorkerEnded):
            silo.answer(request.encode())
    usage = worker.last
    with pytest.raises(DpddError, match=f"ended its worker {MOST_DEATHS} times .the last: exit. and is not tried"):
        Silo(silo.folder, worker).answer(request.encode())
    assert worker.last is usage and entries(silo) == ["open", "reserve"]
    text = (silo.folder / "silo.toml").read_text()
    (silo.folder / "silo.toml").write_text(text.replace("[worker]", "[worker]\nmost_seconds = 999"))
    with pytest.raises(WorkerEnded):  # under other limits it may go better
        Silo(silo.folder, worker).answer(request.encode())


def test_a_worker_that_was_killed_is_started_again_at_no_further_cost(tmp_path: Path, worker: Worker) -> None:
    """The second try is another run with fresh noise; nothing of the first had left."""
    silo, request = planted_silo(tmp_path / "north", worker, section="most_seconds = 0.001"), make_request()
    with pytest.raises(WorkerEnded):
        silo.answer(request.encode())
    assert entries(silo) == ["open", "reserve"]
    without(silo, "most_seconds = 0.001")
    again = Silo(silo.folder, worker)
    assert isinstance(again.answer(request.encode()), SignedReleaseBytes)
    assert entries(again) == ["open", "reserve", "commit"]
    assert not list((silo.folder / "state" / "deaths").iterdir())


@pytest.mark.parametrize("what", ["plan for ever", "plan at length"])
def test_a_planning_bomb_costs_little_and_only_once(
    tmp_path: Path, worker: Worker, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In earnest, in a dry round, and again: one refusal, one plan, nothing in the ledger."""
    silo = planted_silo(tmp_path / "north", worker, policy=f"most_memory = {LEAST}", section="planning_seconds = 1")
    request = planted_request(what)
    answer = silo.answer(request.encode())
    assert isinstance(answer, Refusal) and answer.reason is Reason.NOT_ALLOWED
    assert answer.message == "planning the answer takes more than this silo gives a plan"
    monkeypatch.setattr(worker, "run", None)  # no worker is asked again
    report, second = rehearse(Silo(silo.folder, worker), request.encode()), silo.answer(request.encode())
    assert report.refusal is not None and report.refusal.message == answer.message
    assert second == answer and entries(silo) == ["open"]


def test_only_so_many_plans_are_kept(tmp_path: Path, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "MOST_PLANS", 2)
    silo = planted_silo(tmp_path / "north", worker)
    for number in range(workers.MOST_PLANS + 3):
        assert rehearse(silo, planted_request("nothing", f"run-{number}").encode()).would_answer
    assert len(worker._plans) == workers.MOST_PLANS
