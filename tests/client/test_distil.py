"""One call for one dataset: the mechanisms' own release and guarantee, fresh noise every time, and no trace of it."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpdd.client import distil as module
from dpdd.client import local_synthesis
from dpdd.client.distil import distil
from dpdd.common.config import RenamedKeyWarning
from dpdd.common.errors import ConfigError, DataError, DpddError, IntegrityError
from dpdd.common.methods.registry import METHODS
from dpdd.common.models import backbone
from dpdd.common.models.choice import backbone_for
from dpdd.common.privacy.accounting import guarantee
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.common.privacy.events import Gaussian, compose
from dpdd.common.privacy.privatise import Privatised
from dpdd.common.progress import silent
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.wire.request import Kind
from tests.client.silos import make_request, make_silo

MERF: dict[str, Any] = {
    "method": "dp-merf",
    "settings": {"features": 16},
    "synthesis": {"steps": 3, "batch": 12},
}
SPS: dict[str, Any] = {
    "method": "sps",
    "settings": {"features": 12, "picture": 4, "stages": 2},
    "synthesis": {"steps": 2, "batch_per_class": 2, "redraws": 0},
}

ASKED = {"method": MERF["settings"], "synthesis": MERF["synthesis"]}


def records(count: int = 60, shape: tuple[int, ...] = (8, 8), classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.Generator(np.random.PCG64(0))
    return generator.integers(0, 256, (count, *shape), dtype=np.uint8), np.arange(count) % classes


def small(images: Any, labels: Any, **changes: Any) -> LabelledSet:
    return distil(images, labels, **{"epsilon": 1.0, "images_per_class": 2, "progress": silent} | MERF | changes)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[list[Privatised]]:
    """What the mechanisms answered: the stages of every call."""
    calls: list[list[Privatised]] = []
    run_stages = local_synthesis.run_stages

    def spy(*arguments: Any) -> Any:
        answered = run_stages(*arguments)
        calls.append([answer for _, answer in answered])
        return answered

    monkeypatch.setattr(local_synthesis, "run_stages", spy)
    return calls


@pytest.mark.parametrize("method", [MERF, SPS], ids=["dp-merf", "sps"])
def test_a_set_of_28x28_images_and_its_guarantee(method: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    images, labels = records(90, (28, 28))
    product = small(images, np.array(["ant", "bee", "cat"])[labels], **method)
    assert product.images.shape == (6, 1, 28, 28) and product.images.dtype == np.uint8
    assert product.classes == ("ant", "bee", "cat") and np.bincount(product.labels).tolist() == [2, 2, 2]
    assert (product.teacher is not None) == (method is SPS)
    said = " ".join(capsys.readouterr().out.split())
    assert "(ε, δ) = (1, 1e-05)-differentially private" in said and "analytic Gaussian" in said
    assert "one labelled record, added or removed" in said
    assert "No ledger is kept" in said and "spends again" in said and "dpdd-client" in said
    assert "read off the labels" in said


@pytest.mark.parametrize(("method", "stages"), [(MERF, 1), (SPS, 2)], ids=["dp-merf", "sps"])
def test_what_ran_costs_what_was_promised(method: dict[str, Any], stages: int, answers: list[list[Privatised]]) -> None:
    small(*records(30, (28, 28)), **method)
    (answered,) = answers
    assert len(answered) == stages and all(answer.releasable for answer in answered)
    assert 0.99 < guarantee(compose(*(answer.event for answer in answered)), 1e-5).epsilon <= 1.0 + 1e-9


def test_every_call_has_noise_of_its_own(answers: list[list[Privatised]]) -> None:
    how = {"epsilon": 8.0, "seed": 7, "synthesis": {"steps": 60, "batch": 12}}
    for _ in range(2):
        small(*records(600), **how)
    (one,), (other,) = answers
    for name, sums in one.arrays.items():
        assert (sums != other.arrays[name]).mean() > 0.99
    # What comes of it is seen in SPS's images: those of so small a generator may all collapse to one grey.
    how |= SPS | {"synthesis": SPS["synthesis"] | {"steps": 10}}
    first, second = (small(*records(600), **how) for _ in range(2))
    assert (first.images != second.images).mean() > 0.5


def test_a_silo_would_promise_the_same_for_the_same_request(tmp_path: Path, answers: list[list[Privatised]]) -> None:
    images, labels = records()
    small(images, labels)
    asked = make_request(kind=Kind.DISTILLED_SET, settings={**ASKED, "images_per_class": 2})
    _, plan = make_silo(tmp_path / "north", images=images[:, None], labels=labels).plan(asked)
    assert answers[0][0].event == plan.event


def test_another_event_than_the_planned_one_gives_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = module._plan
    for changes in ({"event": Gaussian(9.0)}, {"distance": 0.0}):
        monkeypatch.setattr(module, "_plan", lambda *facts, changes=changes: replace(real(*facts), **changes))
        with pytest.raises(IntegrityError, match="another event"):
            small(*records())
    assert capsys.readouterr().out == ""


def test_the_arrays_stay_as_they_were() -> None:
    pixels, names = records()
    for images in (pixels, pixels / 255.0, (pixels / 255.0).astype(np.float32)):
        for labels in (names, np.array(["ant", "bee", "cat"])[names]):
            before = images.copy(), labels.copy()
            small(images, labels)
            assert np.array_equal(images, before[0]) and np.array_equal(labels, before[1])
            assert images.flags.writeable and labels.flags.writeable


def test_bytes_and_floats_are_the_same_images(answers: list[list[Privatised]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SystemEntropy", lambda: SeededEntropy(1))
    images, labels = records()
    for given in (images, images[:, None], (images / 255.0).astype(np.float32), images / np.float64(255.0)):
        small(given, labels)
    arrays = [answer.arrays for (answer,) in answers]
    assert all(np.array_equal(each["embedding"], arrays[0]["embedding"]) for each in arrays)


def test_no_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    images, labels = records(12, (28, 28))
    small(images, labels, **SPS)  # once before: modules that are imported now may be cached on disk
    written: list[str] = []
    watching = [True]

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            written.append(str(arguments[0]))

    sys.addaudithook(watch)  # which cannot be taken away again
    try:
        small(images, labels, **SPS)
    finally:
        watching.clear()
    assert [path for path in written if not path.startswith("/dev/")] == []
    assert list(tmp_path.iterdir()) == []


def test_a_class_list_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    product = small(*records(), classes=["ant", "bee", "cat", "dodo"])
    assert product.classes == ("ant", "bee", "cat", "dodo")
    assert np.bincount(product.labels).tolist() == [2, 2, 2, 2]  # which classes have records is not told
    said = capsys.readouterr().out
    assert "read off" not in said and "class list count as public." in said


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([7, 3, 3], ("3", "7")),
        ([True, False, True], ("0", "1")),
        (["b", "a", "b"], ("a", "b")),
        (np.array(["b", "a", "b"], dtype=object), ("a", "b")),
        (np.array([1, 0, 10], dtype=object), ("0", "1", "10")),
        (np.array([2, 10, 2], dtype=np.uint8), ("2", "10")),
    ],
)
def test_labels_are_integers_or_names(labels: Any, classes: tuple[str, ...]) -> None:
    assert small(records(3)[0], labels).classes == classes


def test_too_few_records_are_said_to_be_noise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "SystemEntropy", lambda: SeededEntropy(1))  # 1 in 40 counts looks larger than its noise
    small(*records(900), epsilon=8.0)
    assert "noise" not in capsys.readouterr().out
    small(records(900)[0], [0] * 899 + [1], epsilon=1.0)
    assert "too few records of 1 to be told from noise" in " ".join(capsys.readouterr().out.split())


def test_sps_takes_a_backbone_without_data_that_fits_the_images() -> None:
    for shape in ((1, 28, 28), (3, 32, 32), (1, 30, 12)):
        card = backbone.load(backbone_for(shape)).card
        assert (card.architecture.channels, card.architecture.height, card.architecture.width) == shape
        assert card.provenance.public_data.startswith("none")
    assert small(*records(9, (30, 12)), **SPS).images.shape == (6, 1, 30, 12)
    assert small(*records(9, (3, 32, 32)), **SPS).images.shape == (6, 3, 32, 32)
    other = {**SPS, "settings": {**SPS["settings"], "backbone": "gray28"}}
    assert small(*records(9, (28, 28)), **other).teacher is not None
    with pytest.raises(ConfigError, match=r"no backbone for images of 1x30x7: .* sides from 8") as raised:
        small(*records(9, (30, 7)), **SPS)
    offered = [name for name in METHODS if f"{name} " in str(raised.value)]
    assert offered == ["dp-merf", "dosser"] and not any(METHODS[n].backbones(METHODS[n].settings({})) for n in offered)


def test_settings_that_go_by_another_name_now_are_told() -> None:
    with pytest.warns(RenamedKeyWarning, match="synthesis: settle is called average_last_stages"):
        small(*records(9, (28, 28)), **{**SPS, "synthesis": {**SPS["synthesis"], "settle": 1}})


IMAGES, LABELS = records()


@pytest.mark.parametrize(
    ("changes", "kind", "sentence"),
    [
        ({"images": IMAGES[0]}, DataError, "N, H, W or N, C, H, W, not (8, 8)"),
        ({"images": IMAGES.reshape(60, 1, 1, 8, 8)}, DataError, "N, H, W or N, C, H, W"),
        ({"images": np.zeros((60, 8, 8, 3), np.uint8)}, DataError, "images.transpose(0, 3, 1, 2)"),
        ({"images": IMAGES.astype(np.int64)}, DataError, "uint8, or floats in [0, 1], not int64"),
        ({"images": IMAGES.astype(np.float32)}, DataError, "must lie in [0, 1]"),
        ({"images": np.full((60, 8, 8), np.nan)}, DataError, "must lie in [0, 1]"),
        ({"images": [np.zeros((8, 8)), np.zeros((9, 9))]}, DataError, "all of one shape"),
        ({"labels": LABELS[:-1]}, DataError, "60 images and 59 labels"),
        ({"labels": LABELS[:, None]}, DataError, "one row"),
        ({"labels": np.where(LABELS, np.nan, 1.0)}, DataError, "some labels are NaN"),
        ({"labels": LABELS / 2}, DataError, "integers or names, all of them, not float64"),
        ({"labels": np.array(["a", None] * 30, dtype=object)}, DataError, "integers or names, all of them"),
        ({"labels": np.zeros(60, int)}, ConfigError, "2 to 10,000 classes"),
        ({"classes": ["ant", "bee"]}, DataError, "the label of record 3 is none of the 2 classes"),
        ({"classes": ["ant", "ant", "bee"]}, ConfigError, "names a class twice"),
        ({"classes": "abc"}, ConfigError, "a list of names"),
        ({"epsilon": math.inf}, ConfigError, "epsilon lies in (0, 32], not inf"),
        ({"epsilon": math.nan}, ConfigError, "epsilon lies in"),
        ({"epsilon": 0.0}, ConfigError, "epsilon lies in"),
        ({"delta": 0.0}, ConfigError, "delta lies in (0, 0.01]"),
        ({"delta": 0.5}, ConfigError, "delta lies in (0, 0.01]"),
        ({"images_per_class": 0}, ConfigError, "images_per_class"),
        ({"seed": -1}, ConfigError, "the seed is a whole number"),
        ({"method": "dp-magic"}, ConfigError, "there is no method 'dp-magic'"),
        ({"method": "dm", "settings": {}, "synthesis": {}}, ConfigError, "without privacy"),
        ({"settings": {"featurs": 16}}, ConfigError, "there is no such key"),
        ({"synthesis": {"steps": 0}}, ConfigError, "steps"),
        ({"priors": "even"}, ConfigError, 'priors are "as-released", "equal", or a table'),
        ({"priors": {"0": 0.5, "1": 0.5}}, ConfigError, "'2' has none; the classes are 0, 1, 2"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    changes: dict[str, Any],
    kind: type[DpddError],
    sentence: str,
    answers: list[list[Privatised]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = {"images": IMAGES, "labels": LABELS} | changes
    with pytest.raises(kind) as raised:
        small(given.pop("images"), given.pop("labels"), **given)
    assert sentence in str(raised.value) and "\n" not in str(raised.value)
    assert answers == [] and capsys.readouterr().out == ""
