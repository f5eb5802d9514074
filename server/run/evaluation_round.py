"""The round in which silos evaluate a finished product: asked after synthesis, once per run, of those that released.

An evaluation costs the silos budget. What was asked once is kept in the store with its models and asked again as it
was, so that `resume`, or another try, costs nobody anything more; where the product has changed meanwhile, the figures
are about the models that were sent, and say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpdd.common.errors import ConfigError, DpddError
from dpdd.common.methods.base import DataKind
from dpdd.common.methods.registry import method
from dpdd.common.wire.release import Release
from dpdd.common.wire.request import Kind, ReleaseRequest, decode_request
from dpdd.server.aggregation.usable import usable_releases
from dpdd.server.evaluation import at_silos
from dpdd.server.run.requests import RequestGroup

if TYPE_CHECKING:
    from flwr.serverapp import Grid

    from dpdd.common.methods.evaluation.models import SentModel
    from dpdd.server.run.pipeline import Run, Stage
    from dpdd.server.run.store import Store


@dataclass(frozen=True, eq=False)
class EvaluationRound:
    """What came back: the releases, and what `metrics.json` says of them."""

    releases: Sequence[Release]
    figures: dict[str, Any]


def evaluate_at_silos(
    run: Run, grid: Grid, models: dict[str, SentModel], stages: Sequence[Stage], store: Store
) -> EvaluationRound | None:
    """Ask the silos that released for an evaluation of `models`, and make figures of it; None where there is none.

    A silo that refuses is named, and the others' figures are taken.
    """
    section, console = run.scenario.evaluation.at_silos, run.console
    assert section is not None
    for name in section.models_of(DataKind.of_shape(stages[0].asked[0].request.shape)):
        if name not in models:
            console.say(f"  {name} is not evaluated at the silos: this run has none that can be sent")
    if not models:
        return None
    first = stages[0].asked[0].request
    try:
        wanted = at_silos.evaluation_request(run.scenario.name, run.scenario.seed, section, first, [*models.values()])
    except ConfigError as error:
        console.say(f"  nothing is evaluated at the silos: {error}")
        return None
    known = _asked_before(store, wanted)
    request = wanted if known is None else known
    silos = frozenset(release.silo for release in stages[0].releases)
    group = RequestGroup(request, silos)
    if known is None:
        counted = _counted(stages)
        console.say(at_silos.expected_widths(section, len(first.classes), len(silos), len(models), counted))
    elif known.id != wanted.id:
        console.say(
            "  the silos were asked about models of an earlier dataset of this run; their figures are about those"
        )
    store.add_request(request.id, request.encode())
    missing: dict[str, str] = {}
    with run.phase("evaluation at silos"):
        try:
            missing = run.ask(grid, [group], store, "asking the silos to evaluate")
        except DpddError as error:  # fewer than the quorum: the dataset is made, and this is what there is
            console.say(f"  evaluation at the silos: {error}")
    releases, unusable = usable_releases(
        [release for release in store.releases(request.id, run.roster) if release.silo in silos],
        {request.id: store.expected(request.id)},
    )
    for release in releases:
        missing.pop(release.silo, None)
    missing |= unusable
    for silo in sorted(silos - {release.silo for release in releases}):
        missing.setdefault(silo, "did not answer")
    for silo, why in missing.items():
        console.say(f"  no evaluation by {silo}: {why}")
    figures = at_silos.described(releases, request, [*models])
    return EvaluationRound(releases, {**figures, "missing": missing, "current": request.id == wanted.id})


def _asked_before(store: Store, wanted: ReleaseRequest) -> ReleaseRequest | None:
    """The evaluation that this run has asked for already: of the same kinds of models, at the same budget."""
    for data in store.requests():
        request = decode_request(data)
        if request.kind is Kind.EVALUATION and _terms(request) == _terms(wanted):
            return request
    return None


def _terms(request: ReleaseRequest) -> tuple[Any, ...]:
    """All that is asked of a silo, but for what the models have learnt."""
    kinds = tuple(model["kind"] for model in request.settings["models"])
    asked = (request.epsilon, request.delta, request.classes, request.shape, request.table)
    return (*asked, kinds, request.settings["bins"])


def _counted(stages: Sequence[Stage]) -> float | None:
    """How many records the releases count, all silos together, where the method counts them."""
    request, statistics = stages[0].asked[0].request, stages[0].statistics
    if statistics is None or request.kind is not Kind.STATISTICS:
        return None
    chosen = method(request.method)
    weight = chosen.count_weight(chosen.settings(request.settings), 0)
    return None if weight is None else float(statistics.sums["count"].sum() / weight)
