"""Stages: all reserved with the first, each answered for one input only, and nothing is spent twice."""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpdd.client.cli import main
from dpdd.client.ledger.hash_chain import Entry
from dpdd.client.ledger.ledger import Ledger
from dpdd.client.ledger.lookup import NotCovered
from dpdd.client.silo import Silo
from dpdd.client.stages import reserved
from dpdd.common.errors import IntegrityError, LedgerError
from dpdd.common.methods.base import RunDescription
from dpdd.common.privacy.accounting import Guarantee, gaussian_delta
from dpdd.common.privacy.events import Gaussian, compose, from_json, gaussian_mu
from dpdd.common.privacy.filters import Spending
from dpdd.common.synthesis.statistics import Statistics, of_one_silo
from dpdd.common.wire.answer import Reason, Refusal, SignedReleaseBytes
from dpdd.common.wire.release import Release, open_signed
from dpdd.common.wire.request import Kind, ReleaseRequest, decode_request
from tests import staged
from tests.client.ledger.test_ledger import BUDGET, KEY, open_ledger, request_id
from tests.client.silos import CLASSES, SHAPE, make_request, make_silo

staged_method = staged.staged_method
pytestmark = pytest.mark.usefixtures("staged_method")

SIMULATED = "[simulation]\nallow_no_noise = true\n"


def staged_silo(folder: Path, **options: Any) -> Silo:
    make_silo(folder, **options)
    text = (folder / "silo.toml").read_text()
    text = text.replace('methods = ["dp-merf"]', 'methods = ["dp-merf", "staged"]')
    (folder / "silo.toml").write_text(text + "\n[worker]\nisolation = false\n")  # a worker has no such method
    return Silo(folder)


def ask(stage: int = 0, value: float = 0.1, **changes: Any) -> ReleaseRequest:
    """A request for a stage whose input is `value` everywhere."""
    stage_input = {"mean": np.full(staged.WIDTH, value, np.float32)} if stage else {}
    values = {"method": "staged", "settings": {"stages": 3}, "stage": stage, "stage_input": stage_input}
    return make_request(**values | changes)


def released(silo: Silo, request: ReleaseRequest) -> bytes:
    answer = silo.answer(request.encode())
    assert isinstance(answer, SignedReleaseBytes), answer
    return answer.data


def refused(silo: Silo, request: ReleaseRequest) -> Refusal:
    answer = silo.answer(request.encode())
    assert isinstance(answer, Refusal), answer
    return answer


def entries(silo: Silo) -> list[Entry]:
    ledger = silo.ledger()
    try:
        return ledger.entries()
    finally:
        ledger.close()


def spent(silo: Silo) -> float:
    ledger = silo.ledger()
    try:
        return ledger.status().spent
    finally:
        ledger.close()


def test_the_first_stage_of_a_request_is_the_request_without_stage_and_input() -> None:
    first, later = ask(), decode_request(ask(2).encode())
    assert later.first_stage().id == first.id == first.first_stage().id != later.id
    assert ask(2, epsilon=0.5).first_stage().id != first.id


def test_stage_0_pays_for_all_and_the_others_spend_nothing(tmp_path: Path) -> None:
    silo = staged_silo(tmp_path / "north")
    first = open_signed(released(silo, ask()))
    reservation = entries(silo)[1]
    assert reservation.kind == "reserve" and reservation.body["stages"] == 3
    paid = spent(silo)
    assert paid == pytest.approx(1.0, abs=1e-4)
    found = [first]
    for stage in (1, 2):
        found.append(open_signed(released(silo, ask(stage)), silo.public_key))
        assert spent(silo) == paid
    by_hash = {entry.hash: entry for entry in entries(silo)}
    kinds = [by_hash[release.ledger_entry].kind for release in found]
    assert kinds == ["reserve", "stage", "stage"]
    assert by_hash[found[2].ledger_entry].body == {"root": ask().id, "stage": 2}
    # What was really released is what was reserved, noise by noise, and not a bit more.
    assert compose(*(release.event for release in found)) == from_json(reservation.body["event"])
    assert math.fsum(release.distance for release in found) <= reservation.body["distance"]
    assert {release.guarantee for release in found} == {Guarantee(1.0, 1e-5, first.guarantee.accountant)}
    assert first.event != found[1].event and found[1].event == found[2].event


def test_a_stage_is_never_answered_without_its_reservation(tmp_path: Path) -> None:
    silo = staged_silo(tmp_path / "north")
    (tmp_path / "north" / "records.npz").unlink()
    refusal = refused(silo, ask(1))
    assert refusal.reason is Reason.NOT_ALLOWED and "stage 0" in refusal.message
    ledger = silo.ledger()
    with pytest.raises(NotCovered):
        ledger.begin_stage(ask(1).id, ask().id, 1, Spending(Gaussian(1.0), 0.0))
    with pytest.raises(LedgerError, match="never reserved"):
        ledger.commit(ask(1).id, "ab" * 32)
    assert [entry.kind for entry in entries(silo)] == ["open"] and silo.outbox.ids() == []


@pytest.mark.parametrize(
    "changes", [{"epsilon": 0.5}, {"run": "other"}, {"public_seed": 4}, {"settings": {"stages": 4}}]
)
def test_a_reservation_covers_its_own_request_only(tmp_path: Path, changes: dict[str, Any]) -> None:
    silo = staged_silo(tmp_path / "north")
    released(silo, ask())
    assert refused(silo, ask(1, **changes)).reason is Reason.NOT_ALLOWED
    assert len(silo.outbox.ids()) == 1


def test_a_stage_is_answered_for_one_input_only_and_always_with_the_same_bytes(tmp_path: Path) -> None:
    silo = staged_silo(tmp_path / "north")
    released(silo, ask())
    data = released(silo, ask(1, value=0.1))
    before = entries(silo)
    refusal = refused(silo, ask(1, value=0.2))
    assert refusal.reason is Reason.NOT_ALLOWED
    assert "stage 1 of this run was answered for another input already" in refusal.message
    assert released(Silo(tmp_path / "north"), ask(1, value=0.1)) == data
    assert entries(silo) == before
    released(silo, ask(2, value=0.2))  # the next stage has an input of its own


def test_a_stage_may_be_left_out_and_asked_for_later(tmp_path: Path) -> None:
    silo = staged_silo(tmp_path / "north")
    released(silo, ask())
    for stage in (2, 1):
        released(silo, ask(stage))
    assert [entry.kind for entry in entries(silo)] == ["open", "reserve", "commit", *["stage", "commit"] * 2]


def test_over_budget_is_decided_at_stage_0_for_all(tmp_path: Path) -> None:
    silo = staged_silo(tmp_path / "north", epsilon=0.9)
    refusal = refused(silo, ask())  # stage 0 alone would fit: it has half of μ²
    assert refusal.reason is Reason.OVER_BUDGET and refusal.shortfall is not None
    assert refusal.shortfall.requested == pytest.approx(1.0, abs=1e-3)
    assert refused(silo, ask(1)).reason is Reason.NOT_ALLOWED
    assert spent(silo) == 0.0
    # What was reserved stays answerable when the budget is used up.
    full = staged_silo(tmp_path / "south")
    released(full, ask())
    assert refused(full, ask(run="second")).reason is Reason.OVER_BUDGET
    released(full, ask(1))


@pytest.mark.parametrize(
    "request_",
    [
        lambda: ask(3),
        lambda: ask(2**31),
        lambda: replace(ask(1), stage_input={}),
        lambda: replace(ask(0), stage_input=ask(1).stage_input),
        lambda: replace(ask(1), stage_input={"median": ask(1).stage_input["mean"]}),
        lambda: replace(ask(1), stage_input={"mean": np.zeros(3, np.float32)}),
        lambda: replace(ask(1), stage_input={**ask(1).stage_input, "more": np.zeros(1)}),
        lambda: make_request(stage=1, stage_input=ask(1).stage_input),  # DP-MERF has one stage
        lambda: make_request(stage_input=ask(1).stage_input),
        lambda: distil_request(stage=1, stage_input=ask(1).stage_input),
        lambda: distil_request(stage_input=ask(1).stage_input),
    ],
)
def test_malformed_stages_and_inputs_are_refused_before_a_record_is_read(tmp_path: Path, request_: Any) -> None:
    silo = staged_silo(tmp_path / "north", epsilon=4.0)
    released(silo, ask())
    released(silo, distil_request())
    released(silo, make_request())
    (tmp_path / "north" / "records.npz").unlink()
    before = entries(silo)
    refusal = refused(silo, request_())
    assert refusal.reason is Reason.MALFORMED and "\n" not in refusal.message
    assert entries(silo) == before


def test_the_policy_holds_for_every_stage(tmp_path: Path) -> None:
    silo = staged_silo(tmp_path / "north")
    released(silo, ask())
    text = (tmp_path / "north" / "silo.toml").read_text()
    (tmp_path / "north" / "silo.toml").write_text(text.replace(', "staged"]', "]"))
    refusal = refused(Silo(tmp_path / "north"), ask(1))
    assert refusal.reason is Reason.NOT_ALLOWED and "policy" in refusal.message


def test_an_approval_of_stage_0_covers_all_stages_and_a_denial_too(tmp_path: Path) -> None:
    silo = staged_silo(tmp_path / "north", approval="ask")
    assert refused(silo, ask()).reason is Reason.AWAITING_APPROVAL
    assert refused(silo, ask(1)).reason is Reason.NOT_ALLOWED  # nothing to approve: stage 0 comes first
    assert [request.id for request in silo.waiting()] == [ask().id]
    silo.ledger().note("approve", ask().id)
    for stage in range(2):
        released(silo, ask(stage))
    assert silo.waiting() == []
    silo.ledger().note("deny", ask().id, {"why": "enough"})
    refusal = refused(silo, ask(2))
    assert refusal.reason is Reason.DENIED and "enough" in refusal.message


def test_an_operator_who_starts_to_decide_between_stages_decides_on_the_first(tmp_path: Path) -> None:
    silo = staged_silo(tmp_path / "north")
    released(silo, ask())
    text = (tmp_path / "north" / "silo.toml").read_text()
    (tmp_path / "north" / "silo.toml").write_text(text.replace('approval = "auto"', 'approval = "ask"'))
    silo = Silo(tmp_path / "north")
    assert refused(silo, ask(1)).reason is Reason.AWAITING_APPROVAL
    assert [request.id for request in silo.waiting()] == [ask().id]
    silo.ledger().note("approve", ask().id)
    released(silo, ask(1))


def test_a_stage_that_would_cost_other_than_was_reserved_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silo = staged_silo(tmp_path / "north")
    released(silo, ask())
    honest = staged.Staged.plan

    def louder(self: Any, request: ReleaseRequest, settings: staged.MethodSettings) -> Any:
        plan = honest(self, request, settings)
        sharper = Gaussian(plan.event.sigma / 2)
        return replace(plan, event=sharper, whole=compose(sharper, plan.whole))

    monkeypatch.setattr(staged.Staged, "plan", louder)
    refusal = refused(silo, ask(1))
    assert refusal.reason is Reason.NOT_ALLOWED and "not what was reserved" in refusal.message
    assert len(silo.outbox.ids()) == 1


def test_a_stage_that_runs_another_event_than_planned_releases_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silo = staged_silo(tmp_path / "north", epsilon=4.0)
    released(silo, ask())
    honest = staged.StagedMechanism.run

    def louder(self: Any, records: Any, request: Any, settings: Any, plan: Any, *rest: Any) -> Any:
        return honest(self, records, request, settings, replace(plan, event=Gaussian(plan.event.sigma / 2)), *rest)

    monkeypatch.setattr(staged.StagedMechanism, "run", louder)
    for request in (ask(1), distil_request()):
        with pytest.raises(IntegrityError, match="another event"):
            silo.answer(request.encode())
    assert len(silo.outbox.ids()) == 1


# Two requests at once -------------------------------------------------------------------------------------------------


class SlowLedger(Ledger):
    """Reads slowly, so that whoever reads before taking the write lock is sure to be overtaken."""

    def entries(self) -> list[Entry]:
        found = super().entries()
        threading.Event().wait(0.02)
        return found


WHOLE = Spending(compose(Gaussian(20.0), Gaussian(30.0, 7)), 1e-20)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Ledger.create(tmp_path / "ledger.sqlite", "north", BUDGET, KEY)
    ledger = open_ledger(tmp_path / "ledger.sqlite")
    ledger.reserve(request_id(0), "staged", WHOLE, Guarantee(0.5, 1e-5, "test"), {"run": "r"}, stages=8)
    ledger.close()
    return tmp_path / "ledger.sqlite"


def _take_stages(path: Path, worker: int, results: multiprocessing.Queue) -> None:
    ledger = SlowLedger(path, "north", BUDGET, KEY)
    taken = []
    for stage in range(1, 8):
        try:
            ledger.begin_stage(request_id(100 * worker + stage), request_id(0), stage, WHOLE)
            taken.append(stage)
        except NotCovered:
            pass
    results.put(taken)


def test_processes_that_ask_for_one_stage_with_different_inputs_get_it_once(path: Path) -> None:
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    workers = [context.Process(target=_take_stages, args=(path, n, results)) for n in range(1, 4)]
    for worker in workers:
        worker.start()
    taken = [stage for _ in workers for stage in results.get(timeout=60)]
    for worker in workers:
        worker.join()
    assert sorted(taken) == list(range(1, 8))


def test_the_ledgers_file_itself_holds_one_request_for_each_stage(path: Path) -> None:
    open_ledger(path).begin_stage(request_id(1), request_id(0), 1, WHOLE)
    with sqlite3.connect(path) as db, pytest.raises(sqlite3.IntegrityError, match="once"):
        db.execute(
            "INSERT INTO entries SELECT seq + 1, time, kind, 'other', body, previous, 'x', signature "
            "FROM entries WHERE kind = 'stage'"
        )


@pytest.mark.parametrize("stage", [-1, 0, 8, 9])
def test_there_are_as_many_stages_as_were_reserved(path: Path, stage: int) -> None:
    with pytest.raises(NotCovered, match="not what was reserved"):
        open_ledger(path).begin_stage(request_id(1), request_id(0), stage, WHOLE)


def test_silos_asked_in_parallel_answer_a_stage_for_one_input(tmp_path: Path) -> None:
    silo = staged_silo(tmp_path / "north")
    released(silo, ask())
    values = [0.1, 0.2] * 3
    with ThreadPoolExecutor(len(values)) as pool:
        answers = list(pool.map(lambda v: Silo(tmp_path / "north").answer(ask(1, value=v).encode()), values))
    got = {v for v, answer in zip(values, answers, strict=True) if isinstance(answer, SignedReleaseBytes)}
    assert len(got) == 1
    assert len({answer.data for answer in answers if isinstance(answer, SignedReleaseBytes)}) == 1
    assert len(silo.outbox.ids()) == 2


# Crashes --------------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """As if the process had ended here."""


@contextmanager
def killed_at(step: str) -> Iterator[Any]:
    def progress(what: str, _done: int, _of: int) -> None:
        if what == step:
            raise Killed

    with pytest.raises(Killed):
        yield progress


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize(
    "step", ["reserving", "reading", "summing statistics", "adding noise", "writing", "committing"]
)
def test_a_stage_that_dies_anywhere_is_answered_once_and_costs_nothing_more(
    tmp_path: Path, stage: int, step: str
) -> None:
    home = tmp_path / "north"
    staged_silo(home)
    for earlier in range(stage):
        released(Silo(home), ask(earlier))
    for _ in range(2):
        with killed_at(step) as progress:
            Silo(home).answer(ask(stage).encode(), progress)
    begun = step != "reserving"
    if stage and begun:  # the stage is taken, though its answer never left: another input comes too late
        assert "another input" in refused(Silo(home), ask(stage, value=0.2)).message
    kept = Silo(home).outbox.get(ask(stage).id)
    assert (kept is not None) == (step == "committing")
    data = released(Silo(home), ask(stage))
    assert kept is None or data == kept
    assert released(Silo(home), ask(stage)) == data
    mine = [entry for entry in entries(Silo(home)) if entry.request_id == ask(stage).id]
    assert [entry.kind for entry in mine] == ["stage" if stage else "reserve", "commit"]
    assert mine[1].body["release_sha256"] == hashlib.sha256(data).hexdigest()
    assert open_signed(data).ledger_entry == mine[0].hash
    assert sum(entry.kind == "reserve" for entry in entries(Silo(home))) == 1
    assert spent(Silo(home)) == pytest.approx(1.0, abs=1e-4)


# Decentralised --------------------------------------------------------------------------------------------------------


def distil_request(**changes: Any) -> ReleaseRequest:
    settings = {"method": {"stages": 3}, "synthesis": {}, "images_per_class": 2}
    return ask(**{"kind": Kind.DISTILLED_SET, "settings": settings} | changes)


def test_a_distilled_set_runs_all_stages_and_has_the_event_of_the_whole(tmp_path: Path) -> None:
    silo = staged_silo(tmp_path / "north", records=3000)
    release = open_signed(released(silo, distil_request()), silo.public_key)
    assert set(release.arrays) == {"images", "labels", "counts"}
    reservation = entries(silo)[1]
    assert release.event == from_json(reservation.body["event"]) and release.ledger_entry == reservation.hash
    other = staged_silo(tmp_path / "south")
    released(other, ask())
    assert from_json(entries(other)[1].body["event"]) == release.event
    assert release.guarantee == Guarantee(1.0, 1e-5, release.guarantee.accountant)
    assert [entry.kind for entry in entries(silo)] == ["open", "reserve", "commit"]
    assert released(Silo(tmp_path / "north"), distil_request()) == released(silo, distil_request())
    assert silo.plan(distil_request())[1].event == release.event


def test_without_noise_a_silo_makes_what_a_coordinator_would_from_its_stages(tmp_path: Path) -> None:
    unprotected = float("inf")
    silos = [staged_silo(tmp_path / name, extra=SIMULATED) for name in ("north", "south")]
    settings, run = staged.MethodSettings(stages=3), RunDescription(CLASSES, SHAPE, 3, images_per_class=2)
    stages: list[Statistics] = []
    for stage in range(3):
        stage_input = staged.METHOD.stage_input(stages, settings, run) if stage else {}
        request = replace(ask(epsilon=unprotected), stage=stage, stage_input=stage_input)
        release: Release = open_signed(released(silos[0], request))
        stages.append(of_one_silo(release.arrays, release.event, stage_input))
    expected = staged.METHOD.synthesise(stages, settings, staged.SynthesisSettings(), run)
    distilled = open_signed(released(silos[1], distil_request(epsilon=unprotected)))
    np.testing.assert_array_equal(distilled.arrays["images"], expected.images)
    # Whatever the stages were asked with, re-centred sums without noise give the true means again.
    again = staged.class_means(stages[0], settings)
    for statistics in stages[1:]:
        assert statistics.stage_input["mean"].any()
        np.testing.assert_allclose(staged.class_means(statistics, settings), again, atol=1e-4)


def test_the_noise_of_stages_is_drawn_apart_even_from_one_seed(tmp_path: Path) -> None:
    silo = staged_silo(tmp_path / "north", records=1, extra="[simulation]\nnoise_seed = 4\n")
    sums = [open_signed(released(silo, ask(stage))).arrays["sums"] for stage in range(3)]
    assert (sums[0] != sums[1]).mean() > 0.99 and (sums[1] != sums[2]).mean() > 0.99


# What the operator sees -----------------------------------------------------------------------------------------------


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out


def test_the_operator_sees_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "north"
    silo = staged_silo(home)
    files = []
    for stage in range(3):
        files.append(tmp_path / f"{stage}.request")
        files[-1].write_bytes(ask(stage).encode())
    shown = json.loads(printed(capsys, "plan", "--quick", files[0], "--silo", home, "--json"))
    assert (shown["stage"], shown["stages"], shown["fits"], shown["paid_already"]) == (0, 3, True, False)
    assert shown["event"] in shown["event_of_all_stages"] != shown["event"]
    assert main(["plan", "--quick", str(files[1]), "--silo", str(home)]) == 6
    assert "stage 0" in capsys.readouterr().err
    released(silo, ask())
    released(silo, ask(1))
    out = printed(capsys, "plan", "--quick", files[2], "--silo", home)
    assert "2 of 0..2" in out and "stage 0 reserved for all stages" in out
    other = tmp_path / "other.request"
    other.write_bytes(ask(1, value=0.2).encode())
    assert main(["plan", "--quick", str(other), "--silo", str(home)]) == 6
    assert "another input" in capsys.readouterr().err
    assert "released 2 of 3 stages" in printed(capsys, "budget", "--silo", home)
    out = printed(capsys, "log", "--silo", home)
    assert "for 3 stages" in out and f"stage 1 of {ask().id[:12]}" in out and "intact" in out
    released(silo, ask(2))
    assert "of 3 stages" not in printed(capsys, "budget", "--silo", home)


@pytest.mark.parametrize("stages", [1, 2, 5])
@pytest.mark.parametrize("epsilon", [0.5, 1.0])
def test_all_stages_together_have_the_promised_guarantee(stages: int, epsilon: float) -> None:
    settings = staged.MethodSettings(stages=stages)
    requests = [ask(stage, settings={"stages": stages}, epsilon=epsilon) for stage in range(stages)]
    plans = [staged.METHOD.plan(request, settings) for request in requests]
    total = gaussian_mu(compose(*(plan.event for plan in plans)))
    assert total is not None
    slack = (1.0 + math.exp(epsilon)) * math.fsum(plan.distance for plan in plans)
    assert 0.999e-5 < gaussian_delta(total, epsilon) + slack <= 1e-5
    assert len({reserved(plan) for plan in plans}) == 1 and reserved(plans[0]).event == compose(
        *(p.event for p in plans)
    )
