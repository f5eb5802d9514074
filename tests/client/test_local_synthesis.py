"""A distilled set is the mechanism's release, post-processed: same event, same guarantee, finished images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpdd.client.local_synthesis import run_stages, synthesise_locally
from dpdd.client.records.records import Records
from dpdd.client.silo import Silo
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.registry import method
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.progress import silent
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.statistics import of_one_silo
from dpdd.common.wire.answer import Reason, Refusal, SignedReleaseBytes
from dpdd.common.wire.release import Release, open_signed
from dpdd.common.wire.request import Kind, ReleaseRequest
from dpdd.server.aggregation.sum import add_up
from tests.client.silos import CLASSES, SHAPE, make_request, make_silo
from tests.server.releases import as_asked

METHOD = {"features": 16}
SYNTHESIS = {"steps": 3, "batch": 12}
SIMULATED = "[simulation]\nallow_no_noise = true\n"


def distil_request(**changes: Any) -> ReleaseRequest:
    settings = {"method": METHOD, "synthesis": SYNTHESIS, "images_per_class": 4}
    return make_request(**{"kind": Kind.DISTILLED_SET, "settings": settings} | changes)


def released(silo: Silo, request: ReleaseRequest) -> Release:
    answer = silo.answer(request.encode())
    assert isinstance(answer, SignedReleaseBytes), answer
    return open_signed(answer.data, silo.public_key)


def test_a_distilled_release_has_the_mechanisms_event_and_images_only(tmp_path: Path) -> None:
    silo, request = make_silo(tmp_path / "north", records=1200), distil_request()
    plain = released(make_silo(tmp_path / "south", records=1200), make_request())
    release = released(silo, request)
    assert (release.event, release.guarantee, release.distance) == (plain.event, plain.guarantee, plain.distance)
    assert release.kind is Kind.DISTILLED_SET and release.releasable
    assert set(release.arrays) == {"images", "labels", "counts"}
    np.testing.assert_allclose(release.arrays["counts"], 400, atol=6 * release.event.sigma / 0.1)  # noisy, as released
    assert not np.array_equal(release.arrays["counts"], np.round(release.arrays["counts"]))
    assert release.arrays["images"].dtype == np.uint8 and release.arrays["images"].shape == (12, *SHAPE)
    assert np.bincount(release.arrays["labels"]).tolist() == [4, 4, 4]
    assert silo.ledger().status().spent == pytest.approx(1.0, abs=1e-6)
    assert silo.answer(request.encode()) == Silo(tmp_path / "north").answer(request.encode())


def test_without_noise_the_silo_makes_what_a_coordinator_would(tmp_path: Path) -> None:
    silos = [make_silo(tmp_path / name, extra=SIMULATED) for name in ("north", "south")]
    unprotected = float("inf")
    dp_merf, run = method("dp-merf"), RunDescription(CLASSES, SHAPE, 3, images_per_class=4)
    settings, synthesis = dp_merf.settings(METHOD), dp_merf.synthesis_settings(SYNTHESIS)
    request = make_request(epsilon=unprotected, settings=METHOD)
    release = as_asked(released(silos[0], request), request)
    statistics = add_up([release], dp_merf.layout(settings, run, 0))
    expected = dp_merf.synthesise([statistics], settings, synthesis, run)
    assert isinstance(expected, LabelledSet)
    distilled = released(silos[1], distil_request(epsilon=unprotected))
    np.testing.assert_array_equal(distilled.arrays["images"], expected.images)
    np.testing.assert_array_equal(distilled.arrays["labels"], expected.labels)


def test_a_class_that_is_lost_in_noise_is_left_out(tmp_path: Path) -> None:
    labels = np.arange(60) % 2  # no cat
    images = np.zeros((60, *SHAPE), dtype=np.uint8)
    silo = make_silo(tmp_path / "north", images=images, labels=labels, extra=SIMULATED)
    found = released(silo, distil_request(epsilon=float("inf"))).arrays
    assert set(found["labels"].tolist()) == {0, 1}
    np.testing.assert_allclose(found["counts"], [30.0, 30.0, 0.0], rtol=1e-4)  # on a grid
    few = make_silo(tmp_path / "south", records=6)  # two of each class, and noise of 37
    found = released(few, distil_request(epsilon=0.1)).arrays
    assert len(found["labels"]) < 12
    assert [label in found["labels"] for label in range(3)] == (found["counts"] != 0.0).tolist()


@pytest.mark.parametrize(
    "settings",
    [
        METHOD,
        {"method": METHOD, "synthesis": SYNTHESIS},
        {"method": METHOD, "synthesis": SYNTHESIS, "images_per_class": 0},
        {"method": METHOD, "synthesis": {"stepps": 3}, "images_per_class": 4},
        {"method": {"features": -1}, "synthesis": SYNTHESIS, "images_per_class": 4},
        {"method": METHOD, "synthesis": SYNTHESIS, "images_per_class": 4, "code": "x"},
    ],
    ids=str,
)
def test_wrong_settings_are_refused_before_a_record_is_read(tmp_path: Path, settings: dict[str, Any]) -> None:
    silo = make_silo(tmp_path / "north")
    (tmp_path / "north" / "records.npz").unlink()
    refusal = silo.answer(distil_request(settings=settings).encode())
    assert isinstance(refusal, Refusal) and refusal.reason is Reason.MALFORMED
    assert silo.ledger().status().reserved == 0


def test_a_policy_may_allow_some_kinds_only(tmp_path: Path) -> None:
    silo = make_silo(tmp_path / "north", extra='kinds = ["distilled-set"]')
    refusal = silo.answer(make_request().encode())
    assert isinstance(refusal, Refusal) and refusal.reason is Reason.NOT_ALLOWED
    assert "statistics" in refusal.message and "distilled-set" in refusal.message
    assert released(silo, distil_request()).kind is Kind.DISTILLED_SET


def test_a_plan_says_what_the_set_will_weigh(tmp_path: Path) -> None:
    silo = make_silo(tmp_path / "north")
    _, plan = silo.plan(distil_request())
    assert plan.bytes == 12 * (64 + 8) + 3 * 4  # images, labels, counts
    assert plan.event == silo.plan(make_request())[1].event


def test_a_finished_set_follows_from_the_noisy_sums_alone() -> None:
    """Whoever has the noisy sums makes the very set that the silo sends."""
    dp_merf, request = method("dp-merf"), distil_request()
    settings = dp_merf.settings(METHOD)
    images = np.random.default_rng(0).random((900, *SHAPE), dtype=np.float32)
    records = Records(images, np.arange(900) % 3)
    answered = run_stages(records, request, dp_merf, settings, SeededEntropy(5), silent)
    sent = synthesise_locally(answered, request, dp_merf, settings, silent)
    ((_, noisy),) = answered
    run = RunDescription.of(request, 4)
    statistics = of_one_silo(noisy.arrays, noisy.event)
    expected = dp_merf.synthesise([statistics], settings, dp_merf.synthesis_settings(SYNTHESIS), run)
    assert isinstance(expected, LabelledSet) and noisy.event == sent.event
    np.testing.assert_array_equal(sent.arrays["images"], expected.images)
    counts = statistics.sums["count"][:, 0] / settings.count_weight
    np.testing.assert_array_equal(sent.arrays["counts"], counts.astype(np.float32))
