"""What a scenario asks, and of whom. Silos with the same ε get the same request, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from dpdd.common.config import Settings
from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import Method, RunDescription
from dpdd.common.methods.registry import method, query
from dpdd.common.synthesis.distilled_set import DistilledSetSettings
from dpdd.common.synthesis.priors import EQUAL
from dpdd.common.synthesis.priors import checked as checked_priors
from dpdd.common.wire.request import Kind, ReleaseRequest, decode_request
from dpdd.server.aggregation.union import per_silo
from dpdd.server.run.scenario import Scenario, task_of

_SLICE_OF = {"fashion-slice": "fashion-mnist"}


@dataclass(frozen=True)
class RequestGroup:
    """A request, and the silos that it goes to."""

    request: ReleaseRequest
    silos: frozenset[str]


def request_groups(
    scenario: Scenario, silos: Iterable[str], classes: tuple[str, ...] | None = None
) -> list[RequestGroup]:
    """One group for every ε that the scenario asks these silos for, about all classes or about some."""
    asked: dict[float, set[str]] = {}
    for silo in silos:
        task = task_of(silo) if scenario.continual else None
        asked.setdefault(scenario.privacy.epsilon_of(task[0] if task else silo), set()).add(silo)
    return [
        RequestGroup(make_request(scenario, epsilon=epsilon, classes=classes), frozenset(names))
        for epsilon, names in sorted(asked.items())
    ]


def stage_request_groups(
    asked: Iterable[RequestGroup], stage: int, stage_input: Mapping[str, NDArray], silos: Set[str]
) -> list[RequestGroup]:
    """The requests of a later stage, for those of `silos` that got the first; all are asked with the same input."""
    return [
        RequestGroup(replace(group.request, stage=stage, stage_input=stage_input), group.silos & silos)
        for group in asked
        if group.silos & silos
    ]


def asked_stage_input(
    stored: Iterable[bytes], asked: Iterable[RequestGroup], stage: int
) -> Mapping[str, NDArray] | None:
    """The input of this stage in the requests that a run has stored, if any of these silos was asked with one.

    A silo answers a stage for one input only, so what was asked once is asked of everybody who comes later.
    """
    roots = {group.request.id for group in asked}
    for data in stored:
        request = decode_request(data)
        if request.stage == stage and request.first_stage().id in roots:
            return request.stage_input
    return None


def make_request(
    scenario: Scenario, *, epsilon: float | None = None, classes: tuple[str, ...] | None = None
) -> ReleaseRequest:
    """What this scenario asks of every silo; or of those with another ε, or about some of the classes."""
    checked_priors(scenario.synthesis.priors, scenario.schema.classes)
    settings, run = resolved_settings(scenario, classes)
    check_public_datasets(query(scenario.method.name).public_datasets(settings), scenario.data.dataset)
    return ReleaseRequest(
        run=scenario.name,
        method=scenario.method.name,
        kind=scenario.method.kind,
        settings=_request_settings(scenario, settings),
        epsilon=scenario.privacy.epsilon if epsilon is None else epsilon,
        delta=scenario.privacy.delta,
        classes=run.classes,
        shape=run.shape,
        public_seed=run.public_seed,
        backbone_sha256=backbone_sha256(query(scenario.method.name).backbones(settings), scenario.data.dataset),
        table=run.table,
    )


def resolved_settings(scenario: Scenario, classes: tuple[str, ...] | None = None) -> tuple[Settings, RunDescription]:
    """The method's settings, with what it decides from public facts, and those facts."""
    schema, chosen = scenario.schema, query(scenario.method.name)
    run = RunDescription(classes or schema.classes, schema.shape, scenario.seed, table=schema.table)
    given = chosen.settings(scenario.method.settings)
    if not isinstance(chosen, Method):
        return given, run
    return chosen.resolve(given, run, scenario.privacy.epsilon, scenario.privacy.delta), run


def _request_settings(scenario: Scenario, settings: Settings) -> dict[str, Any]:
    """With every default written out: a request must not change its meaning with the software."""
    own = settings.on_wire()
    if scenario.method.kind is not Kind.DISTILLED_SET:
        return own
    synthesis = method(scenario.method.name).synthesis_settings(scenario.synthesis.settings).on_wire()
    size = scenario.synthesis
    images = size.images_per_silo or per_silo(size.images_per_class, scenario.data.silos)
    priors = None if size.priors is None else EQUAL  # the union turns these to the declared ones
    return DistilledSetSettings(method=own, synthesis=synthesis, images_per_class=images, priors=priors).on_wire()


def backbone_sha256(names: Sequence[str], dataset: str | None) -> bytes:
    """The SHA-256 of the first of these public backbones; empty when there is none.

    ConfigError when a backbone was trained on the run's own data: then nothing about the run would be private. That can
    be told of benchmarks alone. For own data (`dataset` is None) nothing is checked: whoever names a backbone has to
    know that it never saw the silos' records.
    """
    if not names:
        return b""
    from dpdd.common.models import backbone

    cards = [backbone.load(name).card for name in names]
    for card in cards:
        if dataset is not None and same_source(dataset, card.provenance.public_data):
            raise ConfigError(
                f"the run's private data is {dataset}, and backbone {card.name} was trained on "
                f"{card.provenance.public_data}: choose another backbone, or none"
            )
    return bytes.fromhex(cards[0].sha256)


def check_public_datasets(names: Sequence[str], dataset: str | None) -> None:
    """ConfigError where the run's own data would go into the product as they are; told of benchmarks alone."""
    for name in names:
        if dataset is not None and same_source(dataset, name):
            raise ConfigError(
                f"the run's private data is {dataset}, and the product would be made of images of {name}: choose other "
                "public data"
            )


def same_source(dataset: str, public_data: str) -> bool:
    """Whether a backbone's public data is (a version of) this dataset.

    >>> same_source("tinyimagenet32", "tinyimagenet32-gray28"), same_source("fashion-slice", "fashion-mnist")
    (True, True)
    >>> same_source("mnist", "fashion-mnist"), same_source("fashion-mnist", "mnist+cifar10")
    (False, False)
    """
    wanted = _SLICE_OF.get(dataset, dataset)
    words = [_SLICE_OF.get(word, word) for word in public_data.lower().replace("+", " ").replace(",", " ").split()]
    return any(word == wanted or word.startswith(f"{wanted}-") for word in words)
