"""What can be wrong with a run without any silo, found before anybody waits or spends.

Most of a scenario is checked as it is read (`dpdd.server.run.scenario`). Here is the rest: what its parts say of each
other, and of files.
"""

from __future__ import annotations

from dpdd.common.config import one_line
from dpdd.common.data.labelled_images import LabelledImages
from dpdd.common.data.labelled_rows import LabelledRows
from dpdd.common.errors import ConfigError, WireError
from dpdd.common.methods.base import DataKind, RunDescription
from dpdd.common.methods.registry import query
from dpdd.common.models import backbone as backbones
from dpdd.common.models.choice import AUTO
from dpdd.common.wire.request import Kind, decode_request
from dpdd.server.evaluation.learners import LEARNERS
from dpdd.server.evaluation.table_learners import check_installed
from dpdd.server.run.public_backbone import fidelity_backbone, public_backbone
from dpdd.server.run.public_pool import check_public_pool
from dpdd.server.run.requests import make_request, resolved_settings
from dpdd.server.run.scenario import Scenario

SMALLEST_FOR_CONVNET = 8
"""Pixels along either side: the ConvNet of the evaluation halves an image three times."""


def check_before_asking(scenario: Scenario) -> None:
    """An error of one sentence for the first thing that would stop this run, or its evaluation, later on."""
    schema = scenario.schema
    chosen = query(scenario.method.name)
    if DataKind.of_shape(schema.shape) not in chosen.data_kinds:
        taken = " or ".join(sorted(kind.value for kind in chosen.data_kinds))
        raise ConfigError(f"{chosen.name} takes records of kind {taken}, and data.shape is that of kind {schema.kind}")
    tasks = [schema.classes] if scenario.continual is None else scenario.continual.split(schema.classes)
    for classes in tasks:
        _check_request(scenario, classes)
    # A file that cannot be read says so now.
    test = scenario.test_data() if scenario.evaluation.runs else None
    test_rows = scenario.test_rows() if scenario.evaluation.runs else None
    if test is not None:
        _check_test(scenario, test, tasks)
    if test_rows is not None:
        check_installed(LEARNERS[name] for name in scenario.evaluation.learners_of(DataKind.TABLE))
        _check_classes(test_rows)
    public_backbone(scenario)
    fidelity_backbone(scenario)
    check_public_pool(scenario)


def backbone_in_words(scenario: Scenario) -> str | None:
    """Which public backbones records pass through, and whether somebody named them; None for a method without one."""
    chosen = query(scenario.method.name)
    settings, run = resolved_settings(scenario)
    names = chosen.backbones(settings)
    if not names:
        return None
    default = {**chosen.preset, **scenario.method.settings}.get("backbone", AUTO) == AUTO
    why = f" (none was named: the one for images of {' x '.join(map(str, run.shape))})" if default else ""
    return f"public backbone: {', '.join(names)}{why}"


def _check_request(scenario: Scenario, classes: tuple[str, ...]) -> None:
    """The request must be one that silos can read, and every stage must have a layout for records of this shape."""
    request = make_request(scenario, classes=classes)
    try:
        decode_request(request.encode())
    except WireError as error:
        raise ConfigError(f"silos could not read the request: {error}") from None
    chosen = query(request.method)
    settings, run = resolved_settings(scenario, classes)
    for name in chosen.backbones(settings):
        _check_backbone(name, run)
    if request.kind is Kind.STATISTICS:
        for stage in range(chosen.stages(settings)):
            chosen.layout(settings, run, stage)


def _check_backbone(name: str, run: RunDescription) -> None:
    backbone, shape = backbones.load(name), run.image_shape
    channels = backbone.network.mean.shape[1]
    if shape[0] != channels:
        raise ConfigError(f"backbone {name} is for images of {channels} channels, and data.shape has {shape[0]}")
    try:
        backbone.check_images(shape)
    except ConfigError as error:
        raise ConfigError(f"backbone {name} does not fit data.shape: {one_line(error)}") from None


def _check_classes(test: LabelledImages | LabelledRows) -> set[str]:
    """The classes of the test records: two at least."""
    present = {test.classes[label] for label in set(test.labels.tolist())}
    if len(present) < 2:
        raise ConfigError("the test data are all of one class; evaluation compares classes, so two are needed")
    return present


def _check_test(scenario: Scenario, test: LabelledImages, tasks: list[tuple[str, ...]]) -> None:
    present = _check_classes(test)
    for number, classes in enumerate(tasks, start=1):
        if not present & set(classes):
            raise ConfigError(f"the test data have no image of task {number} ({', '.join(classes)})")
    smallest = min(test.shape[1:])
    if "convnet" in scenario.evaluation.learners_of(DataKind.IMAGE) and smallest < SMALLEST_FOR_CONVNET:
        raise ConfigError(
            f"evaluation.learners asks for convnet, which takes images from {SMALLEST_FOR_CONVNET} x "
            f"{SMALLEST_FOR_CONVNET} pixels on, not {' x '.join(map(str, test.shape[1:]))}: leave it out"
        )
