"""Evaluation's private half, beyond the contract: one cell each, whoever chose the weights; nothing hostile gets in."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from dpdd.client import answering
from dpdd.client.mechanisms.evaluation import MECHANISM, cell
from dpdd.client.policy import OWN_BACKBONE
from dpdd.client.records.records import Records
from dpdd.client.silo import Silo
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.evaluation import models as models_module
from dpdd.common.methods.evaluation.models import SentModel, classifiers, teacher_model
from dpdd.common.methods.evaluation.settings import EvaluationSettings
from dpdd.common.methods.registry import query
from dpdd.common.models import backbone as backbones
from dpdd.common.models.convnet import ConvNetArchitecture
from dpdd.common.privacy.clipping import FIXED_POINT_ONE
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.privacy.events import Gaussian
from dpdd.common.progress import silent
from dpdd.common.synthesis.image_embedding import ImageEmbedding
from dpdd.common.synthesis.teacher import Teacher
from dpdd.common.wire.answer import Reason, Refusal, SignedReleaseBytes
from dpdd.common.wire.release import open_signed
from dpdd.common.wire.request import Kind, ReleaseRequest, decode_request
from tests.client.evaluations import PAIR, ask, evaluating_silo, network
from tests.client.silos import CLASSES, SHAPE, make_request, make_silo


def images(count: int, classes: int = 3, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    generator = np.random.default_rng(seed)
    return generator.random((count, *SHAPE), np.float32), generator.integers(0, classes, count)


def run(
    request: ReleaseRequest,
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    entropy: SeededEntropy | None = None,
) -> dict[str, NDArray[np.int64]]:
    """What the mechanism gives, through the encoding of the request."""
    request = decode_request(request.encode())
    settings = EvaluationSettings.model_validate(dict(request.settings))
    plan = query("evaluation").plan(request, settings)
    answer = MECHANISM.run(Records(features, labels), request, settings, plan, entropy or SeededEntropy(0), silent)
    return dict(answer.arrays)


def clean(request: ReleaseRequest, features: NDArray[np.float32], labels: NDArray[np.int64]) -> list[NDArray]:
    """The counts without noise, in grid steps."""
    return list(run(replace(request, epsilon=math.inf), features, labels).values())


def logits(request: ReleaseRequest, features: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    """What each model says, computed all at once."""
    settings = EvaluationSettings.model_validate(dict(request.settings))
    built = classifiers(request.stage_input, settings, RunDescription.of(request))
    with torch.inference_mode():
        return [model(torch.from_numpy(features)).numpy() for model in built]


# What is counted


@pytest.mark.parametrize("count", [1, 2, 3])
def test_counts_are_those_of_a_twin_that_counts_by_hand(count: int) -> None:
    request = ask(*(network(seed) for seed in range(count)))
    features, labels = images(90)
    step = math.floor(FIXED_POINT_ONE / math.sqrt(count) * (1.0 - 1e-9))
    for counts, said in zip(clean(request, features, labels), logits(request, features), strict=True):
        expected = np.zeros((3, 2), np.int64)
        for label, answer in zip(labels, said.argmax(axis=1), strict=True):
            expected[label, 0 if answer == label else 1] += 1
        assert np.abs(counts - step * expected).max() <= 90  # a grid step each, of rounding in single precision


def test_bins_are_those_of_a_twin(count: int = 120) -> None:
    request = ask(network(3, 2, gain=60.0), bins=10, classes=PAIR)
    features, labels = images(count, 2)
    (counts,) = clean(request, features, labels)
    said = torch.softmax(torch.from_numpy(logits(request, features)[0]).double(), 1)[:, 1].numpy()
    expected = np.stack([np.histogram(said[labels == label], 10, (0.0, 1.0))[0] for label in (0, 1)])
    assert np.count_nonzero(expected) > 6
    assert np.array_equal(np.rint(counts / FIXED_POINT_ONE).astype(np.int64), expected)


def test_an_edge_belongs_to_the_bin_above_and_1_to_the_last() -> None:
    assert [cell(np.array([0.0, lead]), 0, 4) for lead in (-math.inf, -1e4, 0.0, 1e4)] == [3, 0, 2, 3]
    assert [cell(np.array([0.0, lead]), 1, 4) for lead in (math.nan, -math.inf, math.inf)] == [0, 0, 0]


def test_a_teacher_is_evaluated_on_the_embedding_that_it_has() -> None:
    embedding = ImageEmbedding(6, 3, 1)
    weights = np.random.default_rng(0).normal(size=(3, embedding.dimensions)).astype(np.float32)
    teacher = Teacher(weights, "scatter28", "", embedding)
    features = np.random.default_rng(1).random((20, 1, 28, 28), np.float32)
    labels = np.arange(20) % 3
    request = ask(teacher_model(teacher), shape=(1, 28, 28))
    assert request.settings["models"][0]["sha256"] == backbones.load("scatter28").card.sha256
    with torch.inference_mode():
        right = int((teacher.logits(torch.from_numpy(features)).argmax(1).numpy() == labels).sum())
    (counts,) = clean(request, features, labels)
    assert np.rint(counts.sum(axis=0) / FIXED_POINT_ONE).tolist() == [right, 20 - right]


# Privacy


def worst_step(request: ReleaseRequest, classes: int, extra: list[NDArray[np.float32]]) -> float:
    """The largest L2 distance that one record more makes, wherever it stands."""
    features, labels = images(7, classes, seed=3)
    without = clean(request, features, labels)
    worst = 0.0
    for number, record in enumerate(extra):
        place, label = number % 8, number % classes
        with_it = clean(request, np.insert(features, place, record, axis=0), np.insert(labels, place, label))
        moved = math.sqrt(sum(float(((a - b) ** 2).sum()) for a, b in zip(with_it, without, strict=True)))
        worst = max(worst, moved / FIXED_POINT_ONE)
    return worst


@pytest.mark.parametrize("bins", [0, 2, 20])
@pytest.mark.parametrize("count", [1, 3])
def test_one_record_moves_everything_together_by_at_most_1(bins: int, count: int) -> None:
    classes = 2 if bins else 3
    request = ask(*(network(seed, classes, gain=9.0) for seed in range(count)), bins=bins, classes=CLASSES[:classes])
    generator = np.random.default_rng(5)
    extra = [generator.random(SHAPE, np.float32) for _ in range(6)]
    extra += [np.zeros(SHAPE, np.float32), np.full(SHAPE, 3e38, np.float32), np.full(SHAPE, 1e-40, np.float32)]
    extra += [np.full(SHAPE, np.nan, np.float32), np.indices(SHAPE).sum(0).astype(np.float32) * 1e30]
    assert 0.999 < worst_step(request, classes, extra) <= 1.0


def boundary() -> SentModel:
    """A model whose two logits differ in their last bits only: rounding decides what it says."""
    sent = network(4, 2, width=32, gain=30.0)
    weight, bias = np.array(sent.arrays["13.weight"]), np.array(sent.arrays["13.bias"])
    weight[1], bias[1] = weight[0] + 1e-7 * weight[1], bias[0] + 1e-7 * bias[1]
    return SentModel(sent.settings, {**sent.arrays, "13.weight": weight, "13.bias": bias})


def test_a_model_whose_answers_hang_on_the_last_bit_learns_nothing_of_the_others() -> None:
    request = ask(boundary(), classes=PAIR)
    features, labels = images(40, 2, seed=6)
    said = logits(request, features)[0]
    assert 0 < (said[:, 1] > said[:, 0]).sum() < 40 and np.abs(said[:, 1] - said[:, 0]).max() < 1e-5
    single = [clean(request, features[i : i + 1], labels[i : i + 1])[0] for i in range(40)]
    generator = np.random.default_rng(7)
    for size in (40, 39, 17):  # any neighbours, any place, any number of them
        chosen = generator.permutation(40)[:size]
        together = clean(request, features[chosen], labels[chosen])[0]
        assert np.array_equal(together, np.sum([single[i] for i in chosen], axis=0))


def test_a_model_without_an_answer_is_wrong_and_no_louder() -> None:
    sent = network(5, 2)
    huge = SentModel(sent.settings, {name: np.full_like(a, 3e38) for name, a in sent.arrays.items()})
    features, labels = images(8, 2)
    (counts,) = clean(ask(huge, classes=PAIR), features, labels)
    assert counts[:, 0].sum() == 0 and round(counts.sum() / FIXED_POINT_ONE) == 8
    (scored,) = clean(ask(huge, classes=PAIR, bins=4), features, labels)
    assert [row.nonzero()[0].tolist() for row in scored] == [[3], [0]]


def scale_accepted(noise: NDArray[np.float64], sigma: float) -> bool:
    """Whether these numbers may be Gaussian noise of this width: a two-sided χ² test that is wrong once in 10,000."""
    below, above = stats.chi2.ppf([0.5e-4, 1.0 - 0.5e-4], noise.size) / noise.size
    return bool(below <= (noise**2).mean() / sigma**2 <= above)


@pytest.mark.parametrize("count", [1, 2])
def test_the_noise_of_each_histogram_is_as_wide_as_stated(count: int) -> None:
    request = ask(*(network(seed, 2) for seed in range(count)), bins=100, classes=PAIR)
    settings = EvaluationSettings.model_validate(dict(request.settings))
    event = query("evaluation").plan(request, settings).event
    assert isinstance(event, Gaussian)
    nobody = np.zeros((0, *SHAPE), np.float32), np.zeros(0, np.int64)
    drawn = [run(request, *nobody, SeededEntropy(seed)) for seed in range(5)]
    for name in drawn[0]:
        noise = np.concatenate([arrays[name].ravel() for arrays in drawn]) / FIXED_POINT_ONE
        assert scale_accepted(noise, event.sigma)
        assert not scale_accepted(noise, 0.7 * event.sigma) and not scale_accepted(noise, 1.3 * event.sigma)


def test_m_models_cost_the_root_of_m() -> None:
    sigmas, steps = [], []
    for count in (1, 4, 16):
        request = ask(*[network(0, 2)] * count, classes=PAIR)
        settings = EvaluationSettings.model_validate(dict(request.settings))
        event = query("evaluation").plan(request, settings).event
        assert isinstance(event, Gaussian)
        sigmas.append(event.sigma)
        counts = clean(request, *images(1, 2))
        assert len(counts) == count
        steps.append(counts[0].max() / FIXED_POINT_ONE)
    assert sigmas == pytest.approx([sigmas[0]] * 3)  # the same noise, whatever is asked
    assert steps == pytest.approx([1.0, 0.5, 0.25], rel=1e-5)  # and a record stands out less


# What may be asked


def refused(silo: Silo, request: ReleaseRequest) -> Refusal:
    answer = silo.answer(request.encode())
    assert isinstance(answer, Refusal), answer
    return answer


def entries(silo: Silo) -> int:
    ledger = silo.ledger()
    try:
        return len(ledger.entries())
    finally:
        ledger.close()


def changed(request: ReleaseRequest, **model: Any) -> ReleaseRequest:
    """The request with other settings of its model."""
    (known,) = request.settings["models"]
    return replace(request, settings={**request.settings, "models": [known | model]})


def with_array(request: ReleaseRequest, **arrays: NDArray) -> ReleaseRequest:
    return replace(request, stage_input={**request.stage_input, **arrays})


TEACHER = {"kind": "teacher", "backbone": "scatter28", "sha256": "ab" * 32, "features": 4, "picture": 0}


def taught(**model: Any) -> ReleaseRequest:
    settings = {"models": [TEACHER | model], "bins": 0}
    return ask(settings=settings, stage_input={"model0.weights": np.zeros((3, 5), np.float32)})


HOSTILE = {
    "no array": lambda: replace(ask(), stage_input={}),
    "an array missing": lambda: replace(ask(), stage_input=dict(list(ask().stage_input.items())[1:])),
    "an array too many": lambda: with_array(ask(), more=np.zeros(3, np.float32)),
    "arrays of another model": lambda: with_array(ask(), **{"model1.0.weight": np.zeros((4, 1, 3, 3), np.float32)}),
    "another shape": lambda: with_array(ask(), **{"model0.13.bias": np.zeros(4, np.float32)}),
    "transposed": lambda: with_array(ask(), **{"model0.0.weight": np.zeros((1, 4, 3, 3), np.float32)}),
    "double precision": lambda: with_array(ask(), **{"model0.13.bias": np.zeros(3)}),
    "bytes": lambda: with_array(ask(), **{"model0.13.bias": np.zeros(3, np.uint8)}),
    "a NaN": lambda: with_array(ask(), **{"model0.13.bias": np.full(3, np.nan, np.float32)}),
    "an infinity": lambda: with_array(ask(), **{"model0.13.bias": np.full(3, np.inf, np.float32)}),
    "another width": lambda: changed(ask(), width=8),
    "a huge width": lambda: changed(ask(), width=10**9),
    "a negative width": lambda: changed(ask(), width=-4),
    "a deviation of 0": lambda: changed(ask(), std=0.0),
    "an unknown kind": lambda: changed(ask(), kind="transformer"),
    "a key too many": lambda: changed(ask(), code="import os"),
    "no model": lambda: ask(settings={"models": [], "bins": 0}),
    "too many models": lambda: ask(*[network()] * 17),
    "models that are none": lambda: ask(settings={"models": "all of them", "bins": 0}),
    "bins for three classes": lambda: ask(bins=4),
    "odd bins": lambda: ask(bins=3),
    "many bins": lambda: ask(bins=10_000),
    "a path": lambda: taught(backbone="/etc/passwd"),
    "a path that ends like a backbone": lambda: taught(backbone="../weights/scatter28"),
    "a file beside": lambda: taught(backbone="tiny"),
    "another hash": lambda: taught(),
    "no hash": lambda: taught(sha256=""),
    "too many features": lambda: taught(features=4000, sha256=backbones.load("scatter28").card.sha256),
    "a large picture": lambda: taught(picture=64, sha256=backbones.load("scatter28").card.sha256),
    "another number of channels": lambda: taught(backbone="rgb32", sha256=backbones.load("rgb32").card.sha256),
    "a later stage": lambda: replace(ask(), stage=1),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_requests_are_refused_before_anything_is_reserved_or_read(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silo = evaluating_silo(tmp_path / "north")
    monkeypatch.chdir(tmp_path)
    for ending in (".json", ".safetensors"):  # a file that a path would find
        (tmp_path / f"tiny{ending}").write_bytes(b"{}")

    def no_records(*_: object) -> None:
        raise AssertionError("records are read for a request that is refused")

    monkeypatch.setattr(answering, "load_records", no_records)
    refusal = refused(silo, HOSTILE[what]())
    assert refusal.reason is Reason.MALFORMED and "\n" not in refusal.message
    assert entries(silo) == 1 and silo.outbox.ids() == []


def test_a_backbone_that_does_not_ship_is_refused_even_where_a_file_would_be_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silo = evaluating_silo(tmp_path / "north")
    with torch.random.fork_rng(devices=[]):
        built = backbones.build(ConvNetArchitecture(channels=1, height=8, width=8, classes=3, widths=(4, 6)))
    card = backbones.save(tmp_path / "tiny", built, backbones.Provenance("none", "none", 0.0, "test", 1))
    monkeypatch.chdir(tmp_path)
    assert backbones.load("tiny", card.sha256).card == card
    refusal = refused(silo, taught(backbone="tiny", sha256=card.sha256))
    assert refusal.reason is Reason.MALFORMED and refusal.message == OWN_BACKBONE


def test_large_models_are_refused_by_their_settings_and_never_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silo = evaluating_silo(tmp_path / "north")
    text = (tmp_path / "north" / "silo.toml").read_text()
    (tmp_path / "north" / "silo.toml").write_text(text.replace("[1, 8, 8]", "[1, 4096, 4096]"))
    silo = Silo(tmp_path / "north")
    for width, why in ((512, "too wide"), (8, "weights together")):
        refusal = refused(silo, changed(replace(ask(), shape=(1, 4096, 4096)), width=width))
        assert refusal.reason is Reason.MALFORMED and why in refusal.message
    monkeypatch.setattr(models_module, "MOST_WEIGHTS", 10)
    assert "10 is the most" in refused(evaluating_silo(tmp_path / "south"), ask()).message


def test_an_operator_who_allowed_a_method_did_not_allow_evaluation(tmp_path: Path) -> None:
    assert "does not allow evaluation" in refused(make_silo(tmp_path / "north"), ask()).message
    silo = evaluating_silo(tmp_path / "south")
    text = (tmp_path / "south" / "silo.toml").read_text()
    kinds = '["statistics", "distilled-set", "gradient-round"]'
    (tmp_path / "south" / "silo.toml").write_text(text.replace("[policy]", f"[policy]\nkinds = {kinds}"))
    refusal = refused(Silo(tmp_path / "south"), ask())
    assert refusal.reason is Reason.NOT_ALLOWED and "evaluation" in refusal.message
    assert entries(silo) == 1


def test_kinds_and_queries_belong_together(tmp_path: Path) -> None:
    silo = evaluating_silo(tmp_path / "north")
    for request in (ask(kind=Kind.STATISTICS), ask(kind=Kind.DISTILLED_SET), make_request(kind=Kind.EVALUATION)):
        assert refused(silo, request).reason is Reason.NOT_ALLOWED


def test_an_approval_is_for_these_models_only(tmp_path: Path) -> None:
    silo = evaluating_silo(tmp_path / "north", approval="ask")
    first, other = ask(network(0)), ask(network(1))
    assert refused(silo, first).reason is refused(silo, other).reason is Reason.AWAITING_APPROVAL
    assert {request.id for request in silo.waiting()} == {first.id, other.id}
    silo.ledger().note("approve", first.id)
    assert isinstance(silo.answer(first.encode()), SignedReleaseBytes)
    assert refused(silo, other).reason is Reason.AWAITING_APPROVAL


def test_the_ledger_charges_evaluation_like_any_release(tmp_path: Path) -> None:
    silo = evaluating_silo(tmp_path / "north", epsilon=1.0, holdout=0.5)
    assert isinstance(silo.answer(make_request(epsilon=0.9).encode()), SignedReleaseBytes)
    over = refused(silo, ask(epsilon=0.9))  # the two read different records, and nobody counts on that
    assert over.reason is Reason.OVER_BUDGET and over.shortfall is not None
    assert isinstance(silo.answer(ask(epsilon=0.2).encode()), SignedReleaseBytes)


def test_what_leaves_is_the_histogram_and_whether_it_is_of_held_out_records(tmp_path: Path) -> None:
    for holdout in (0.0, 0.5):
        silo = evaluating_silo(tmp_path / f"silo-{holdout}", holdout=holdout)
        answer = silo.answer(ask().encode())
        assert isinstance(answer, SignedReleaseBytes)
        release = open_signed(answer.data, silo.public_key)
        assert {name: array.shape for name, array in release.arrays.items()} == {"model0": (3, 2)}
        assert release.kind is Kind.EVALUATION and release.held_out == (holdout > 0.0)
        other = silo.answer(make_request().encode())
        assert isinstance(other, SignedReleaseBytes)
        assert not open_signed(other.data).held_out
