"""Evaluation at the silos: how often models that the request brings are right about records that nobody may see.

Released: for each model a histogram over all records that are read, class x (right, wrong), or class x bin of the score
that the model gives class 1. A record falls into one cell per model, and adds 1/√m to it, so that m models cost √m in
noise. The models are numbers, never code: weights of an architecture that every silo has installed.
"""

from __future__ import annotations

from typing import ClassVar

from dpdd.common.methods.base import Query, RunDescription
from dpdd.common.methods.evaluation.settings import EvaluationSettings, TeacherModel, segment_of
from dpdd.common.methods.plan import Plan
from dpdd.common.privacy.clipping import Layout, class_segment
from dpdd.common.wire.request import ReleaseRequest


class Evaluation(Query[EvaluationSettings], family="evaluation"):
    """Noisy histograms of right and wrong answers."""

    first_stage_input: ClassVar[bool] = True

    def layout(self, settings: EvaluationSettings, run: RunDescription, stage: int) -> Layout:
        """A histogram per model."""
        numbers = range(len(settings.models))
        return Layout(tuple(class_segment(segment_of(each), settings.cells, len(run.classes)) for each in numbers))

    def plan(self, request: ReleaseRequest, settings: EvaluationSettings) -> Plan:
        """One Gaussian over all histograms, once the models are known to answer a record of this shape."""
        from dpdd.common.methods.evaluation import planning

        return planning.plan(request, settings, self.layout(settings, RunDescription.of(request), request.stage))

    def working_memory(self, settings: EvaluationSettings, run: RunDescription, stage: int) -> int:
        """The models with their backbones, and what the largest makes of one record."""
        from dpdd.common.methods.evaluation import planning

        return planning.working_memory(settings, run)

    def backbones(self, settings: EvaluationSettings) -> tuple[str, ...]:
        """Those of the teachers; each is pinned in the settings."""
        return tuple(model.backbone for model in settings.models if isinstance(model, TeacherModel))
