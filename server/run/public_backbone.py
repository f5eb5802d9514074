"""The public backbones of a scenario: what its learners start from, and what is chosen where it names none."""

from __future__ import annotations

from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import DataKind
from dpdd.common.methods.registry import method
from dpdd.common.models import backbone as backbones
from dpdd.common.models.backbone import Backbone
from dpdd.common.models.choice import AUTO, backbone_for
from dpdd.server.evaluation.learners import LEARNERS
from dpdd.server.evaluation.training_data import check_channels
from dpdd.server.run.requests import backbone_sha256, resolved_settings
from dpdd.server.run.scenario import Scenario


def public_backbone(scenario: Scenario) -> Backbone | None:
    """What the scenario's probe and fine-tuning start from; None where it asks for neither.

    ConfigError where there is nothing that they could start from, so that a run can say so before it asks anybody.
    """
    evaluation = scenario.evaluation
    kind = DataKind.TABLE if scenario.data.is_table else DataKind.IMAGE
    wanted = [name for name in evaluation.learners_of(kind) if LEARNERS[name].needs_backbone]
    if not (wanted and evaluation.runs):
        return None
    name = evaluation.backbone or _own_backbone(scenario)
    if name == AUTO:
        name = backbone_for(scenario.schema.shape)
    if not name:
        raise ConfigError(
            f"evaluation.learners asks for {wanted[0]}, and {scenario.method.name} has no public backbone of its "
            f"own: name one as evaluation.backbone ({', '.join(backbones.available())})"
        )
    backbone_sha256([name], scenario.data.dataset)  # refuses one that saw the run's own data
    backbone = backbones.load(name)
    tuned = [each for each in wanted if LEARNERS[each].tunes_backbone]
    if tuned and not backbone.card.classes:
        raise ConfigError(
            f"evaluation.learners asks for {tuned[0]}, but backbone {name} was never trained, so there is nothing to "
            f"fine-tune: name a network as evaluation.backbone, or ask for a probe"
        )
    shape = scenario.schema.shape
    check_channels("test", shape[0], backbone.network)
    backbone.check_images(shape)
    return backbone


def fidelity_backbone(scenario: Scenario) -> Backbone | None:
    """In whose features synthetic images are compared with test images; None where the scenario does not ask for it."""
    name = scenario.evaluation.fidelity
    if name is None or not scenario.evaluation.runs:
        return None
    if scenario.data.is_table:
        raise ConfigError("evaluation.fidelity is for images; tables are compared by their columns, without a backbone")
    if name == AUTO:
        name = backbone_for(scenario.schema.shape)
    backbone_sha256([name], scenario.data.dataset)  # refuses one that saw the run's own data
    backbone, shape = backbones.load(name), scenario.schema.shape
    check_channels("test", shape[0], backbone.network)
    backbone.check_images(shape)
    return backbone


def _own_backbone(scenario: Scenario) -> str | None:
    settings, _ = resolved_settings(scenario)
    return next(iter(method(scenario.method.name).backbones(settings)), None)
