"""Files that a publisher made to stop a reader: one readable error, at once, in little memory."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpdd.common.errors import ConfigError, DataError, IntegrityError
from dpdd.common.models import backbone
from dpdd.common.models.convnet import ConvNetArchitecture
from dpdd.common.models.evaluation_convnet import EvaluationConvNet
from dpdd.common.models.scattering import ScatteringArchitecture
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.product import ReleasedModel
from dpdd.common.synthesis.teacher import Teacher
from dpdd.server.cli import main as server
from tests.server.finished_runs import finished_run, images, table

DEEP = "[" * 5000 + "]" * 5000
HUGE = 2**40


def rewritten(path: Path, change: Callable[[dict[str, Any]], str]) -> None:
    """A safetensors file whose own entry in the header says something else."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"]["dpdd"] = change(json.loads(header["__metadata__"]["dpdd"]))
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def refused(load: Callable[[Path], object], path: Path, kind: type[Exception] = DataError) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(kind) as caught:
            load(path)
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()
    assert str(caught.value).isprintable() and len(str(caught.value)) < 700


@pytest.mark.parametrize(
    "change",
    [
        lambda about: DEEP,
        lambda about: json.dumps({**about, "portrait": [16, HUGE, 1]}),
        lambda about: json.dumps({**about, "portrait": [16, 1e300, 1]}),
        lambda about: json.dumps({**about, "portrait": ["a" * 10_000, 4, 1]}),
        lambda about: "\x1b[2J" * 1000,
    ],
)
def test_a_teacher(tmp_path: Path, change: Callable[[dict[str, Any]], str]) -> None:
    images(teacher=True).save(tmp_path)
    rewritten(tmp_path / "teacher.safetensors", change)
    refused(Teacher.load, tmp_path)


@pytest.mark.parametrize(
    "change",
    [lambda about: DEEP, lambda about: json.dumps({**about, "schema": "\x1b[2J" * 5000}), lambda about: "7"],
)
def test_a_dataset(tmp_path: Path, change: Callable[[dict[str, Any]], str]) -> None:
    table().save(tmp_path)
    rewritten(tmp_path / "dataset.safetensors", change)
    refused(LabelledSet.load, tmp_path)


@pytest.mark.parametrize("change", [{"width": 0}, {"width": HUGE}, {"shape": [1, HUGE, HUGE]}, {"shape": [1, 8, -8]}])
def test_a_model(tmp_path: Path, change: dict[str, Any]) -> None:
    ReleasedModel.of(EvaluationConvNet((1, 8, 8), 2, 4), ("cat", "dog"), (1, 8, 8), 4).save(tmp_path)
    rewritten(tmp_path / "model.safetensors", lambda about: json.dumps({**about, **change}))
    refused(ReleasedModel.load, tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"widths": [6, HUGE]},
        {"widths": [20_000, 20_000]},
        {"classes": HUGE},
        {"kind": "wrn", "depth": 6 * HUGE + 4, "widen": 1, "widths": None, "pool_after": None},
        {"kind": "wrn", "depth": 10, "widen": 3000, "widths": None, "pool_after": None},
    ],
)
def test_a_backbone_that_would_take_all_memory(tmp_path: Path, change: dict[str, Any]) -> None:
    """Its card and the header of its weights agree, and its hash is right."""
    own = tmp_path / "own"
    architecture = ConvNetArchitecture(channels=1, height=12, width=12, classes=3, widths=(6, 8))
    backbone.save(own, backbone.build(architecture), backbone.Provenance("noise", "none needed", 0.0, "none", 0))
    weights, card = own.with_suffix(".safetensors"), json.loads(own.with_suffix(".json").read_text())
    changed = {**card["architecture"], **change}
    card["architecture"] = {name: value for name, value in changed.items() if value is not None}
    about = {"architecture": card["architecture"], "normalisation": card["normalisation"]}
    rewritten(weights, lambda _: json.dumps(about, sort_keys=True, separators=(",", ":")))
    card["sha256"] = hashlib.sha256(weights.read_bytes()).hexdigest()
    own.with_suffix(".json").write_text(json.dumps(card))
    refused(backbone.load, own, IntegrityError)


@pytest.mark.parametrize("sizes", [{"scales": 2**31}, {"angles": HUGE}])
def test_a_transform_that_would_take_all_memory(sizes: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="at most"):
        ScatteringArchitecture(channels=1, height=28, width=28, **sizes)


def test_a_card_whose_figures_no_text_can_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    card = finished_run(tmp_path / "run", images())
    card["evaluation"]["learners"][0]["runs"] = 10**30
    (tmp_path / "run" / "card.json").write_text(json.dumps(card))
    assert server(["verify", str(tmp_path / "run")]) == 0  # what is checked is what is promised
    assert "CARD.md is not" in capsys.readouterr().out
