"""What an answer takes: bounds that hold for every method, and figures that stay with the operator."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dpdd.client.cli import main
from dpdd.client.estimates import Estimate, Measured, memory_bound
from dpdd.client.worker.limits import Limits, default_memory
from dpdd.client.worker.plan_json import plan_to_json
from dpdd.client.worker.worker import Worker
from dpdd.common.methods.request_plan import planned, settings_of
from tests.client.silos import make_request, make_silo
from tests.methods.cases import CASES
from tests.methods.harness import Case

ONE_OF_EACH = [case for case in CASES if case.variant in ("", "layers-and-groups", "any-size", "two-models")]


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as a_worker:
        a_worker.start()
        yield a_worker


@pytest.mark.parametrize("case", ONE_OF_EACH, ids=str)
def test_memory_stays_below_its_bound_and_not_far_below(case: Case, worker: Worker) -> None:
    """By the system's count of the worker's peak, over more than a batch of records."""
    request = replace(case.request(math.inf), stage_input=case.first_input)  # which needs no accounting
    settings = settings_of(request)
    plan = planned(request, settings)
    header = {"plan": plan_to_json(plan), "records": [70]}
    worker.run("measure", header, request.encode(), Limits(600.0, default_memory()))
    assert worker.last is not None
    bound = memory_bound(request, settings, plan)
    assert worker.last.peak < bound < 3 * worker.last.peak


def test_the_bound_grows_with_what_is_asked_for(tmp_path: Path) -> None:
    """A hundred thousand random features of large images would take a hundred gigabytes; nobody tries."""
    request = make_request(settings={"features": 100_000}, shape=(3, 200, 200))
    settings = settings_of(request)
    assert memory_bound(request, settings, planned(request, settings)) > 300 << 30


def test_what_depends_on_the_number_of_records_grows_with_it(tmp_path: Path) -> None:
    silo = make_silo(tmp_path / "silo", extra="most_cpu_seconds = 10")
    _, plan = silo.plan(make_request())
    few, many = (Estimate.of(silo.settings, plan, 1 << 29, Measured.of((2.0, 5.84)), count) for count in (100, 100_000))
    assert few.cpu_seconds == pytest.approx(0.72 + 1.0) and few.exceeded(silo.settings) == []
    assert many.exceeded(silo.settings) == ["most_cpu_seconds"]
    assert few.memory < many.memory and few.disk < many.disk and few.bytes == many.bytes == plan.bytes


def test_the_operator_sees_what_an_answer_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    silo, path = make_silo(tmp_path / "silo", extra=f"most_disk = {1 << 17}"), tmp_path / "x.request"
    path.write_bytes(make_request().encode())
    assert main(["plan", str(path), "--silo", str(silo.folder), "--json"]) == 0
    estimate = json.loads(capsys.readouterr().out)["estimate"]
    assert estimate["records"] == 60 and estimate["cpu_seconds"] > 0.0 and estimate["exceeds"] == []
    assert estimate["memory"] > 1 << 28 and estimate["disk"] > estimate["bytes"] > 0
    assert main(["plan", str(path), "--silo", str(silo.folder)]) == 0
    assert " CPU seconds, up to " in (shown := capsys.readouterr().out) and "(60 records)" in shown
    (silo.folder / "records.npz").unlink()
    assert main(["plan", str(path), "--silo", str(silo.folder), "--quick"]) == 0
    assert "the records cannot be counted" in capsys.readouterr().out
