"""Evaluation, planned: the models must answer a record of the run's shape; then one Gaussian over all histograms."""

from __future__ import annotations

import math

import torch

from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.evaluation.models import answers, array_shapes, backbone_of, classifiers
from dpdd.common.methods.evaluation.settings import EvaluationSettings, LinearModel, TeacherModel
from dpdd.common.methods.plan import Plan, gaussian_plan
from dpdd.common.privacy.clipping import Layout
from dpdd.common.wire.request import ReleaseRequest


def plan(request: ReleaseRequest, settings: EvaluationSettings, layout: Layout) -> Plan:
    """One Gaussian over all histograms, once the models are known to answer a record of this shape.

    Zeros are a black image, or a row with the first code of every column.
    """
    run = RunDescription.of(request)
    for model in classifiers(request.stage_input, settings, run):
        logits = answers(model, torch.zeros(1, *run.shape))
        if logits.shape != (len(run.classes),):
            raise ConfigError(f"a model gives {logits.shape} answers to a record, not one for each class")
    return gaussian_plan(request, [layout])


def working_memory(settings: EvaluationSettings, run: RunDescription) -> int:
    """Bytes: all weights, thrice while they are decoded; and for one image what a ConvNet's first layer comes to.

    Those of linear models once more, in double precision.
    """
    weights = sum(math.prod(shape) for shape in array_shapes(settings, run).values())
    passing = 0
    for model in settings.models:
        if isinstance(model, TeacherModel):
            passing += backbone_of(model, run).network.working_memory(run.shape, 1)
        elif isinstance(model, LinearModel):
            passing += 16 * math.prod(array_shapes(EvaluationSettings(models=(model,)), run)["model0.weights"])
        else:
            passing = max(passing, 4 * 8 * model.width * math.prod(run.shape[1:]))
    return 12 * weights + passing
