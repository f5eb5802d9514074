"""A dry round tells what an answer would, reads no record, and leaves the silo as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpdd.client.rehearsal import rehearse
from dpdd.client.silo import Silo
from dpdd.common.errors import DpddError, LedgerError
from dpdd.common.wire.answer import Reason, Refusal, SignedReleaseBytes
from dpdd.common.wire.plan import Cost, decode_report, encode_report
from dpdd.common.wire.request import Kind
from tests import staged
from tests.client.silos import CLASSES, SHAPE, make_request, make_silo

staged_method = staged.staged_method


def state(silo: Silo) -> dict[str, bytes]:
    """All that the silo keeps."""
    folder = silo.folder / "state"
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


REQUESTS = {
    "fits": make_request().encode(),
    "too much at once": make_request(epsilon=3.0).encode(),
    "too large a delta": make_request(delta=1e-3).encode(),
    "over budget": make_request(epsilon=1.5).encode(),
    "another method": make_request(method="sps").encode(),
    "unknown method": make_request(method="nothing").encode(),
    "other classes": make_request(classes=("ant", "bee", "cow")).encode(),
    "another order": make_request(classes=CLASSES[::-1]).encode(),
    "another shape": make_request(shape=(1, 9, 8)).encode(),
    "a table": make_request(shape=(64,)).encode(),
    "no protection": make_request(epsilon=float("inf")).encode(),
    "wrong settings": make_request(settings={"featurse": 16}).encode(),
    "a kind that it has not": make_request(kind=Kind.GRADIENT_ROUND).encode(),
    "a later stage": make_request(stage=1, stage_input={"mean": np.zeros(4, np.float32)}).encode(),
    "no request": b"\xff\x00",
}


@pytest.mark.parametrize("name", REQUESTS)
def test_the_report_says_what_an_answer_would(tmp_path: Path, name: str) -> None:
    silo, data = make_silo(tmp_path / "north"), REQUESTS[name]
    before = state(silo)
    report = rehearse(silo, data)
    assert state(silo) == before
    assert decode_report(encode_report(report)) == report
    answer = silo.answer(data)
    if isinstance(answer, Refusal):
        assert name != "fits" and report.refusal == answer
    else:
        assert name == "fits" and report.would_answer and not report.paid and not report.asks_operator
        assert report.cost == Cost(1.0, 1e-5, 8 * 3 * (2 * 16 + 1))
        assert rehearse(silo, data).paid
        toml = silo.folder / "silo.toml"
        toml.write_text(toml.read_text().replace('"dp-merf"', ""))
        assert rehearse(Silo(silo.folder), data).would_answer and Silo(silo.folder).answer(data) == answer


def test_the_report_is_the_same_whatever_the_records_are(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (30, *SHAPE), dtype=np.uint8)
    labels = np.arange(30) % 3
    silos = [
        make_silo(tmp_path / "all" / "north", images=images, labels=labels),
        make_silo(tmp_path / "one-less" / "north", images=images[1:], labels=labels[1:]),
        make_silo(tmp_path / "one-class" / "north", images=images[:2], labels=labels[:2] * 0),
        make_silo(tmp_path / "broken" / "north", images=images, labels=labels),
        make_silo(tmp_path / "gone" / "north", images=images, labels=labels),
    ]
    (silos[3].folder / "records.npz").write_bytes(b"this cannot be read")
    (silos[4].folder / "records.npz").unlink()
    for data in REQUESTS.values():
        assert len({rehearse(silo, data) for silo in silos}) == 1
    with pytest.raises(DpddError):  # whereas an answer does read the records
        silos[4].answer(REQUESTS["fits"])


def test_an_operator_who_is_asked_shows_in_the_report_and_gets_no_request(tmp_path: Path) -> None:
    silo, request = make_silo(tmp_path / "north", approval="ask"), make_request()
    report = rehearse(silo, request.encode())
    assert report.asks_operator and report.would_answer and not silo.waiting()
    assert isinstance(silo.answer(request.encode()), Refusal) and silo.waiting()
    note(silo, "approve", request.id)
    assert not rehearse(silo, request.encode()).asks_operator
    assert isinstance(silo.answer(request.encode()), SignedReleaseBytes)
    other = make_request(run="other", epsilon=0.1)
    note(silo, "deny", other.id, why="not this year")
    refusal = rehearse(silo, other.encode()).refusal
    assert refusal == silo.answer(other.encode()) and refusal.reason is Reason.DENIED


def test_what_is_left_of_the_budget_is_not_told_before_the_operator_agreed(tmp_path: Path) -> None:
    """An answer would say that the operator has to decide, and no figure."""
    silo, request = make_silo(tmp_path / "north", approval="ask", epsilon=0.4321), make_request()
    refusal = rehearse(silo, request.encode()).refusal
    assert refusal is not None and refusal.reason is Reason.OVER_BUDGET and refusal.shortfall is None
    assert "0.4" not in refusal.message
    note(silo, "approve", request.id)
    assert rehearse(silo, request.encode()).refusal == silo.answer(request.encode())


@pytest.mark.usefixtures("staged_method")
def test_the_cost_is_that_of_all_stages(tmp_path: Path) -> None:
    silo = make_silo(tmp_path / "north")
    toml = silo.folder / "silo.toml"
    toml.write_text(toml.read_text().replace('"dp-merf"', '"staged"'))
    silo = Silo(silo.folder)
    report = rehearse(silo, make_request(method="staged", settings={"stages": 3}).encode())
    assert report.cost is not None and (report.cost.epsilon, report.cost.delta) == (1.0, 1e-5)


def test_a_silo_in_trouble_reports_nothing(tmp_path: Path) -> None:
    silo = make_silo(tmp_path / "north")
    toml = silo.folder / "silo.toml"
    toml.write_text(toml.read_text().replace("epsilon = 1.0\n", "epsilon = 1.5\n"))
    with pytest.raises(LedgerError, match="accept-change"):
        rehearse(Silo(silo.folder), make_request().encode())


def note(silo: Silo, kind: str, request_id: str, **body: str) -> None:
    ledger = silo.ledger()
    try:
        ledger.note(kind, request_id, body)  # type: ignore[arg-type]
    finally:
        ledger.close()
