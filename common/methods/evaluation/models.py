"""The models of an evaluation: their arrays in a request, and the classifiers that both sides build of them.

A silo trusts nothing here. Names, shapes, types and sizes of all arrays follow from the settings, and are compared with
what came before anything is built; a backbone is one of those that ship with dpdd, with the hash that was asked for,
and never a path. A linear model of a table has a weight for every cell of the request's schema.

>>> from dpdd.common.methods.evaluation.settings import EvaluationSettings
>>> run = RunDescription(("cat", "dog"), (1, 8, 8), public_seed=0)
>>> settings = EvaluationSettings(models=({"kind": "convnet", "width": 4},))
>>> shapes = array_shapes(settings, run)
>>> len(shapes), shapes["model0.0.weight"]
(14, (4, 1, 3, 3))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpdd.common.data.table.schema import TableSchema
from dpdd.common.errors import ConfigError, DpddError
from dpdd.common.methods.base import DataKind, RunDescription
from dpdd.common.methods.evaluation.settings import (
    ConvNetModel,
    EvaluationSettings,
    LinearModel,
    ModelSettings,
    TeacherModel,
    segment_of,
)
from dpdd.common.models import backbone as backbones
from dpdd.common.models import table_logistic
from dpdd.common.models.choice import check_built_for
from dpdd.common.models.evaluation_convnet import EvaluationConvNet
from dpdd.common.synthesis.image_embedding import ImageEmbedding
from dpdd.common.synthesis.teacher import Teacher

MOST_WEIGHTS = 1 << 22
"""Numbers in all models of a request together, which is 16 MiB."""
MOST_ACTIVATIONS = 1 << 27
"""Numbers that a layer makes of one image."""

Classifier = Callable[[Tensor], Tensor]
"""Images in [0, 1], or rows of codes ↦ a logit for every class."""


@dataclass(frozen=True, eq=False)
class SentModel:
    """A model as a request brings it: what the settings say of it, and its arrays under their own names."""

    settings: ModelSettings
    arrays: Mapping[str, NDArray[np.float32]]

    def shifted(self, shift: NDArray[np.floating]) -> SentModel:
        """A ConvNet with a constant added to the score of every class: its last bias takes it in."""
        last = list(self.arrays)[-1]
        return replace(self, arrays={**self.arrays, last: (self.arrays[last] + shift).astype(np.float32)})


def convnet_model(network: EvaluationConvNet, width: int, mean: float = 0.0, std: float = 1.0) -> SentModel:
    """A ConvNet of the learner `convnet`, or one that a method released."""
    weights = {name: np.array(value.detach().cpu().numpy()) for name, value in network.state_dict().items()}
    return SentModel(ConvNetModel(kind="convnet", width=width, mean=mean, std=std), weights)


def teacher_model(teacher: Teacher) -> SentModel:
    """A teacher on a backbone that ships with dpdd; ConfigError for another: silos have no file of that name."""
    name = teacher.backbone
    if not backbones.comes_with_dpdd(name):
        raise ConfigError(f"a teacher is evaluated at silos on a backbone that ships with dpdd, and {name} does not")
    settings = TeacherModel(
        kind="teacher",
        backbone=name,
        sha256=teacher.backbone_sha256 or backbones.load(name).card.sha256,
        features=teacher.embedding.features,
        picture=teacher.embedding.side,
    )
    return SentModel(settings, {"weights": np.array(teacher.weights, dtype=np.float32)})


def linear_model(weights: NDArray[np.float32]) -> SentModel:
    """A linear classifier of rows: the teacher of a table, or one that learnt from synthetic rows."""
    return SentModel(LinearModel(kind="linear"), {"weights": np.array(weights, dtype=np.float32)})


def in_request(models: Sequence[SentModel]) -> dict[str, NDArray[np.float32]]:
    """The arrays of all models, as a request brings them."""
    return {
        f"{segment_of(number)}.{name}": np.ascontiguousarray(array, dtype=np.float32)
        for number, model in enumerate(models)
        for name, array in model.arrays.items()
    }


def array_shapes(settings: EvaluationSettings, run: RunDescription) -> dict[str, tuple[int, ...]]:
    """The arrays that a request with these settings brings; ConfigError where no such model could be run."""
    if not settings.models:
        raise ConfigError("the request names no model to evaluate")
    if settings.bins and len(run.classes) != 2:
        raise ConfigError(f"bins are for two classes, and the request has {len(run.classes)}: ask with bins = 0")
    return {
        f"{segment_of(number)}.{name}": shape
        for number, model in enumerate(settings.models)
        for name, shape in _shapes(model, run).items()
    }


def classifiers(
    arrays: Mapping[str, NDArray[Any]], settings: EvaluationSettings, run: RunDescription
) -> list[Classifier]:
    """The models of a request; ConfigError unless its arrays are theirs, exactly."""
    expected = array_shapes(settings, run)
    total = sum(math.prod(shape) for shape in expected.values())
    if total > MOST_WEIGHTS:
        raise ConfigError(f"the models have {total} weights together, and {MOST_WEIGHTS} is the most")
    given = {name: array.shape for name, array in arrays.items()}
    if given != expected:
        odd = min(name for name in given.keys() | expected.keys() if given.get(name) != expected.get(name))
        raise ConfigError(
            f"the request brings {_words(given.get(odd))} as {odd}, and its settings want {_words(expected.get(odd))}"
        )
    for name, array in arrays.items():
        if array.dtype != np.float32 or not np.isfinite(array).all():
            raise ConfigError(f"the request's array {name} is not of finite numbers in single precision")
    return [
        _classifier(model, {name: arrays[f"{segment_of(number)}.{name}"] for name in _shapes(model, run)}, run)
        for number, model in enumerate(settings.models)
    ]


def _words(shape: tuple[int, ...] | None) -> str:
    return "nothing" if shape is None else f"an array of shape {shape}"


def _shapes(model: ModelSettings, run: RunDescription) -> dict[str, tuple[int, ...]]:
    if isinstance(model, LinearModel):
        return {"weights": table_logistic.weights_shape(_table_of(run))}
    if run.kind is not DataKind.IMAGE:
        raise ConfigError(f"a model of kind {model.kind} is of images, and the records are rows of a table")
    _, height, width = run.image_shape
    if isinstance(model, TeacherModel):
        return {"weights": (len(run.classes), _embedding(model, run).dimensions)}
    if min(height, width) < 8:
        raise ConfigError(f"the ConvNet halves images three times, and these have {height} x {width} pixels")
    if model.width * height * width > MOST_ACTIVATIONS:
        raise ConfigError(f"a ConvNet of width {model.width} is too wide for images of {height} x {width} pixels")
    with torch.device("meta"):  # shapes alone: nothing is allocated
        network = EvaluationConvNet(run.image_shape, len(run.classes), model.width)
    return {name: tuple(value.shape) for name, value in network.state_dict().items()}


def _table_of(run: RunDescription) -> TableSchema:
    if run.table is None:
        raise ConfigError("a linear model is of rows of a table with a schema, and the request has none")
    return run.table


def _classifier(model: ModelSettings, arrays: Mapping[str, NDArray[np.float32]], run: RunDescription) -> Classifier:
    if isinstance(model, LinearModel):
        return table_logistic.scorer(np.array(arrays["weights"]), _table_of(run))
    if isinstance(model, TeacherModel):
        teacher = Teacher(np.array(arrays["weights"]), model.backbone, model.sha256, _embedding(model, run))
        return teacher.logits
    with torch.device("meta"):
        network = EvaluationConvNet(run.image_shape, len(run.classes), model.width)
    weights = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
    network.load_state_dict(weights, assign=True)
    network.eval().requires_grad_(False)
    mean, std = model.mean, model.std
    return lambda images: network((images - mean) / std)


def _embedding(model: TeacherModel, run: RunDescription) -> ImageEmbedding:
    """What the teacher's weights are for; ConfigError where its backbone cannot be had, or is for other images."""
    channels, height, width = run.image_shape
    backbone = backbone_of(model, run)
    if model.features > backbone.network.whitening.dimensions:
        most = backbone.network.whitening.dimensions
        raise ConfigError(f"backbone {model.backbone} has {most} features, not {model.features}")
    if model.picture > min(height, width):
        raise ConfigError(f"a picture of {model.picture} pixels does not fit images of {height} x {width} pixels")
    return ImageEmbedding(model.features, model.picture, channels)


def backbone_of(model: TeacherModel, run: RunDescription) -> backbones.Backbone:
    """What the teacher looks through; ConfigError where that cannot be had, or is for other images."""
    check_built_for(model.backbone, run.shape)
    backbone = _backbone(model.backbone, model.sha256)
    backbone.check_images(run.shape)
    return backbone


@lru_cache(maxsize=16)
def _backbone(name: str, sha256: str) -> backbones.Backbone:
    if not backbones.comes_with_dpdd(name):  # before anything else: `load` would take it for a path
        raise ConfigError(f"there is no backbone {name!r} in dpdd; there are {', '.join(backbones.available())}")
    try:
        with torch.random.fork_rng(devices=[]):  # building a network draws weights
            return backbones.load(name, sha256)
    except DpddError as error:
        raise ConfigError(str(error)) from None


def answers(model: Classifier, record: torch.Tensor) -> NDArray[np.float64]:
    """The logits of one record, which is alone in its batch."""
    with torch.inference_mode():
        logits: NDArray[np.float64] = model(record)[0].numpy().astype(np.float64)
    return logits
