"""Requests for evaluations that `make_silo`'s silos can answer: small networks on 8 x 8 images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpdd.client.silo import Silo
from dpdd.common.methods.evaluation.models import SentModel, convnet_model, in_request
from dpdd.common.models.evaluation_convnet import EvaluationConvNet
from dpdd.common.wire.request import Kind, ReleaseRequest
from tests.client.silos import CLASSES, SHAPE, make_request, make_silo

PAIR = ("ant", "bee")


def network(seed: int = 0, classes: int = len(CLASSES), width: int = 4, gain: float = 1.0) -> SentModel:
    """A random network; with a `gain` it is very sure of what it says, and says different things."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        built = EvaluationConvNet(SHAPE, classes, width)
        if gain != 1.0:
            with torch.no_grad():
                built[-1].weight.mul_(gain)
                built[-1].bias.sub_(built((torch.rand(200, *SHAPE) - 0.4) / 0.3).median(0).values)
    return convnet_model(built, width, mean=0.4, std=0.3)


def ask(*models: SentModel, bins: int = 0, **changes: Any) -> ReleaseRequest:
    """A request for an evaluation of these models (left out: of one)."""
    models = models or (network(),)
    settings = {"models": [model.settings.model_dump() for model in models], "bins": bins}
    values = {
        "method": "evaluation",
        "kind": Kind.EVALUATION,
        "settings": settings,
        "stage_input": in_request(models),
    }
    return make_request(**(values | changes))


def evaluating_silo(folder: Path, *, classes: tuple[str, ...] = CLASSES, holdout: float = 0.0, **options: Any) -> Silo:
    """A silo that allows DP-MERF and evaluation."""
    options.setdefault("epsilon", 4.0)
    if classes != CLASSES and "labels" not in options:
        options["labels"] = np.random.default_rng(1).integers(0, len(classes), options.get("records", 60))
    make_silo(folder, **options)
    text = (folder / "silo.toml").read_text().replace('["dp-merf"]', '["dp-merf", "evaluation"]')
    text = text.replace('["ant", "bee", "cat"]', str(list(classes)).replace("'", '"'))
    if holdout:
        text += f"[evaluation]\nholdout = {holdout}\n"
    (folder / "silo.toml").write_text(text)
    return Silo(folder)
