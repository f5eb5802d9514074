"""Released models: numbers in a file, the same classifier after a round trip, and no file that is something else."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from dpdd.common.errors import DataError
from dpdd.common.models.evaluation_convnet import EvaluationConvNet
from dpdd.common.synthesis.product import ReleasedModel
from dpdd.common.synthesis.product_files import MODEL, file_sha256

CLASSES, SHAPE, WIDTH = ("ant", "bee", "größe"), (2, 8, 8), 4
ABOUT = {"classes": CLASSES, "format": "dpdd model v1", "shape": SHAPE, "width": WIDTH}


def released() -> tuple[ReleasedModel, EvaluationConvNet]:
    torch.manual_seed(3)
    network = EvaluationConvNet(SHAPE, len(CLASSES), WIDTH).eval()
    return ReleasedModel.of(network, CLASSES, SHAPE, WIDTH), network


def test_a_model_is_the_same_after_a_round_trip(tmp_path: Path) -> None:
    model, network = released()
    digest = model.save(tmp_path / "new" / "folder")
    loaded = ReleasedModel.load(tmp_path / "new" / "folder")
    assert (loaded.classes, loaded.shape, loaded.width) == (CLASSES, SHAPE, WIDTH)
    assert loaded.weights.keys() == model.weights.keys() == network.state_dict().keys()
    images = torch.rand(5, *SHAPE, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = network(images)
    assert torch.equal(loaded.logits(images), expected) and torch.equal(model.logits(images), expected)
    assert expected.std() > 0.0 and not loaded.logits(images).requires_grad
    assert digest == file_sha256(tmp_path / "new" / "folder" / MODEL)
    assert loaded.save(tmp_path / "again") == digest
    assert len({model.save(tmp_path / str(number)) for number in range(8)}) == 1


def test_it_is_what_the_network_was_and_not_what_it_becomes() -> None:
    model, network = released()
    images = torch.rand(5, *SHAPE)
    before = model.logits(images)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    again = ReleasedModel(model.weights, CLASSES, SHAPE, WIDTH)
    assert torch.equal(again.logits(images), before) and not torch.equal(network(images), before)


def test_asking_it_for_the_first_time_leaves_torchs_generator_alone() -> None:
    model, _ = released()
    before = torch.random.get_rng_state()
    model.logits(torch.zeros(1, *SHAPE))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_facts_for_the_card() -> None:
    model, _ = released()
    assert model.facts == {"model": "ConvNet of width 4", "image_shape": [2, 8, 8], "file": MODEL}
    assert model.teacher is None  # type: ignore[func-returns-value]


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "pickle", "garbage"])
def test_damaged_files_are_refused_by_name(tmp_path: Path, damage: str) -> None:
    released()[0].save(tmp_path)
    path = tmp_path / MODEL
    data = path.read_bytes()
    contents = {"empty": b"", "cut": data[:-1], "pickle": b"\x80\x04pickle", "garbage": b"\xff" * 100}
    path.unlink()
    if damage in contents:
        path.write_bytes(contents[damage])
    with pytest.raises(DataError, match="there is no model here" if damage == "missing" else "not a dpdd model"):
        ReleasedModel.load(tmp_path)


Weights = Mapping[str, np.ndarray]


def first_of(weights: Weights) -> str:
    return sorted(weights)[0]


WRONG: dict[str, tuple[Callable[[Weights], Weights], dict[str, Any] | None]] = {
    "a tensor too few": (lambda weights: {k: v for k, v in weights.items() if k != first_of(weights)}, {}),
    "a tensor too many": (lambda weights: {**weights, "more": np.zeros(3, np.float32)}, {}),
    "a tensor of another shape": (lambda weights: {**weights, first_of(weights): np.zeros(99, np.float32)}, {}),
    "no header": (lambda weights: weights, None),
    "another width": (lambda weights: weights, {"width": WIDTH + 1}),
    "a width in words": (lambda weights: weights, {"width": "wide"}),
    "another class": (lambda weights: weights, {"classes": [*CLASSES, "more"]}),
    "a number of classes": (lambda weights: weights, {"classes": 3}),
    "other channels": (lambda weights: weights, {"shape": [1, 8, 8]}),
    "a flat shape": (lambda weights: weights, {"shape": [64]}),
}


@pytest.mark.parametrize(("change", "about"), WRONG.values(), ids=WRONG)
def test_files_that_do_not_fit_together_are_refused(
    tmp_path: Path, change: Callable[[Weights], Weights], about: dict[str, Any] | None
) -> None:
    header = None if about is None else {"dpdd": json.dumps(ABOUT | about)}
    save_file(dict(change(released()[0].weights)), tmp_path / MODEL, metadata=header)
    with pytest.raises(DataError, match="not a dpdd model"):
        ReleasedModel.load(tmp_path)
