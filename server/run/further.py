"""Further datasets of a run (`synthesis.also`): made of the releases that are there, evaluated like the first one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dpdd.common.models.backbone import Backbone
from dpdd.server.evaluation.scoring import TestData, evaluate, kind_of
from dpdd.server.report.also import Also
from dpdd.server.run.public_pool import without_pool
from dpdd.server.run.stage import Stage

if TYPE_CHECKING:
    from dpdd.server.run.pipeline import Run


def further_datasets(run: Run, stages: Sequence[Stage], public: Backbone | None, test: TestData | None) -> list[Also]:
    """All that the scenario asks for. No silo is asked anything for them: they are post-processing."""
    made, scenario = [], run.scenario
    for asked in scenario.synthesis.also:
        by = asked.method or scenario.method.name
        run.console.say(f"  also {asked.name}: {asked.images_per_class} per class by {by}")
        with run.phase(f"also {asked.name}"):
            product = run.with_priors(run.made(stages, by, asked), stages)
        scores: dict[str, Any] = {"accuracy": {}}
        if test is not None:
            with run.phase("evaluation"):
                settings = scenario.evaluation
                learners = without_pool(settings.learners_of(kind_of(product)))  # the pool is beside the first set
                settings = settings.model_copy(update={"learners": learners})
                scores = evaluate(product, test, settings, public, scenario.seed, run.console)
        made.append(Also(asked.name, by, product, scores))
    return made
