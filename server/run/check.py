"""What can be wrong with a run whatever its silos say, found before anybody waits for them."""

from __future__ import annotations

from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import DataKind, RunDescription
from dpdd.common.methods.registry import method
from dpdd.common.wire.request import Kind
from dpdd.server.run.public_backbone import public_backbone
from dpdd.server.run.requests import make_request
from dpdd.server.run.scenario import Scenario


def check_scenario(scenario: Scenario) -> None:
    """ConfigError where the dataset, a backbone, the tasks, or the method for this kind of record cannot be."""
    public_backbone(scenario)
    request, chosen = make_request(scenario), method(scenario.method.name)
    if scenario.continual:
        scenario.continual.split(request.classes)
    kinds = " or ".join(sorted(kind.value for kind in chosen.data_kinds))
    if DataKind.of_shape(request.shape) not in chosen.data_kinds:
        raise ConfigError(f"{chosen.name} is for records of kind {kinds}, and these have the shape {request.shape}")
    if request.kind is not Kind.DISTILLED_SET:
        settings = chosen.settings(request.settings)
        try:
            for stage in range(chosen.stages(settings)):
                chosen.layout(settings, RunDescription.of(request), stage)
        except ValueError as error:
            raise ConfigError(f"{chosen.name} with these settings: {error}") from None
