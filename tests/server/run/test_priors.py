"""Declared priors in whole runs: centralised, decentralised and continual, with nobody asked anew."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dpdd.common.data.benchmarks import FASHION_CLASSES
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.priors import ClassCounts
from dpdd.scenarios.cli import main
from dpdd.server.run import pipeline

SCENARIO = """
name = "priors"
[data]
dataset = "fashion-slice"
silos = 2
records_per_silo = 200
[privacy]
epsilon = inf
[method]
name = "sps"
mode = "{mode}"
[method.settings]
features = 12
picture = 4
[synthesis]
images_per_class = 2
{priors}
[synthesis.settings]
steps = 2
batch_per_class = 2
[evaluation]
runs = {runs}
width = 4
steps = 2
augmentations = 100
convnet_dd = {{ runs = 1, width = 4, steps = 2 }}
{more}
"""
GIVEN = np.linspace(1.0, 10.0, 10) / 55.0
TASKS = "[continual]\ntasks = 2\njoint = false\n"


def declared(priors: str) -> str:
    if priors == "given":
        pairs = zip(FASHION_CLASSES, GIVEN.tolist(), strict=True)
        return "priors = {" + ", ".join(f'"{name}" = {share!r}' for name, share in pairs) + "}"
    return f'priors = "{priors}"' if priors else ""


def run(folder: Path, mode: str, priors: str, more: str = "", runs: int = 0) -> LabelledSet:
    """Always in the same folder: only the first run of a mode may ask the silos."""
    file = folder / "scenario.toml"
    file.write_text(SCENARIO.format(mode=mode, priors=declared(priors), more=more, runs=runs))
    assert main(["run", str(file), "--out", str(folder / "run")]) == 0
    return LabelledSet.load(folder / "run" / "dataset")


def released(folder: Path) -> set[str]:
    return {path.name for path in (folder / "run").glob("silos/*/state/outbox/*.release")}


def ahead(dataset: LabelledSet) -> np.ndarray:
    """What the teacher's offsets add to the log odds against the first class."""
    assert dataset.teacher is not None
    offsets = dataset.teacher.weights[:, -1].astype(np.float64) * dataset.teacher.embedding.constant
    return offsets - offsets[0]


@pytest.mark.usefixtures("few_test_records")
@pytest.mark.parametrize(("mode", "more"), [("centralised", ""), ("decentralised", ""), ("centralised", TASKS)])
def test_labels_teacher_and_set_agree_and_no_silo_is_asked_anew(tmp_path: Path, mode: str, more: str) -> None:
    equal = run(tmp_path, mode, "equal", more)
    asked = released(tmp_path)
    given = run(tmp_path, mode, "given", more)
    as_released = run(tmp_path, mode, "as-released", more, runs=1)
    assert released(tmp_path) == asked, "other priors cost nothing"
    assert equal.priors == pytest.approx([0.1] * 10) and given.priors == pytest.approx(GIVEN.tolist())
    assert as_released.priors == pytest.approx([0.1] * 10, abs=0.04), "about as many records of every class"
    for each in (given, as_released):
        np.testing.assert_array_equal(each.images, equal.images)
        expected = np.log(np.array(each.priors) / each.priors[0])
        np.testing.assert_allclose(ahead(each) - ahead(equal), expected, atol=2e-3)
    assert given.soft is not None and given.teacher is not None
    if not more:  # a task's labels are among its own classes
        expected = given.teacher.probabilities(given.as_torch().tensors[0]).numpy()
        np.testing.assert_allclose(given.soft, expected, atol=1e-5)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert list(metrics["dataset"]["priors"]) == list(FASHION_CLASSES)
    assert set(metrics["metrics"]) == {"balanced-accuracy", "macro-roc-auc"}


def test_nothing_declared_leaves_no_trace_but_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    counts = ClassCounts(np.linspace(40.0, 400.0, 10), np.ones(10, bool))
    monkeypatch.setattr(pipeline, "class_counts", lambda _stages: counts)
    plain = run(tmp_path, "centralised", "")
    shown = " ".join("".join(capfd.readouterr()).split())
    assert "classes are unequal: their noisy counts are from 40 (T-shirt/top) to 400 (Ankle boot)" in shown
    assert plain.priors == ()
    assert b"priors" not in (tmp_path / "run" / "dataset" / "dataset.safetensors").read_bytes()
    assert "priors" not in (tmp_path / "run" / "metrics.json").read_text().replace('"scenario": "priors"', "")
