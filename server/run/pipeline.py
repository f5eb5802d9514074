"""From a scenario and a Flower grid to a finished run folder. Asking again is free: silos repeat themselves.

Before anybody is asked to spend, a dry round (`dpdd.server.run.dry_round`) asks every silo what it would do.

A method may release in stages: the sums of the earlier ones give the input that the next one is asked with. Once asked,
it is kept in the store and never computed anew, because a silo answers a stage for one input only; so a silo
that comes late is asked what the others were.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dpdd.common import flower as _flower  # noqa: F401  (first: it turns Flower's telemetry off)

# isort: split
from flwr.serverapp import Grid

from dpdd.common.errors import DpddError
from dpdd.common.methods.base import DataKind, RunDescription
from dpdd.common.methods.registry import method, query
from dpdd.common.methods.request_plan import images_made
from dpdd.common.models.backbone import Backbone
from dpdd.common.progress import Console
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.priors import shares
from dpdd.common.synthesis.product import Product
from dpdd.common.synthesis.runner import SynthesisRunner
from dpdd.common.wire.release import Release
from dpdd.common.wire.request import Kind
from dpdd.server.aggregation.influence import rows as influence_rows
from dpdd.server.aggregation.union import opened, union
from dpdd.server.aggregation.usable import check_quorum
from dpdd.server.evaluation.at_silos import check as check_at_silos
from dpdd.server.evaluation.at_silos import sent_models
from dpdd.server.evaluation.scoring import TestData, Trained, evaluate, train_learners
from dpdd.server.report.also import Also, save_also
from dpdd.server.report.card import evaluation_rows, privacy_rows, write_card
from dpdd.server.report.comparison import compare_table
from dpdd.server.report.image_comparison import compare_images
from dpdd.server.report.pool import pool_facts
from dpdd.server.report.rounds import rounds_facts
from dpdd.server.run.asking import Asking
from dpdd.server.run.checks import backbone_in_words
from dpdd.server.run.dry_round import DryRound, RehearsalDeadline
from dpdd.server.run.evaluation_round import EvaluationRound, evaluate_at_silos
from dpdd.server.run.further import further_datasets
from dpdd.server.run.public_backbone import public_backbone
from dpdd.server.run.public_pool import PublicPool
from dpdd.server.run.requests import RequestGroup, asked_stage_input, make_request, request_groups, stage_request_groups
from dpdd.server.run.roster import Roster
from dpdd.server.run.rounds import Rounds, waits_for
from dpdd.server.run.scenario import AlsoSection, Scenario, SynthesisSection
from dpdd.server.run.stage import Aggregation, Stage, class_counts, lost_classes, sums_of
from dpdd.server.run.store import Store

__all__ = ["Run", "Stage", "class_counts", "make_request"]


@dataclass
class Run:
    """One run of a scenario in its folder."""

    scenario: Scenario
    folder: Path
    roster: Roster
    console: Console
    runner: SynthesisRunner = field(default_factory=SynthesisRunner)
    rehearsal: RehearsalDeadline | None = field(default_factory=RehearsalDeadline)
    seconds: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    left_out: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.aggregation = Aggregation(self.scenario, self.console.say, self.missing)
        section = self.scenario.synthesis.pool
        self.pool = None if section is None else PublicPool(section)

    def execute(self, grid: Grid) -> dict[str, Any]:
        """Ask, aggregate, synthesise, evaluate, write; returns what `metrics.json` holds."""
        self.scenario.privacy.check_silos(self.roster.keys)
        public = self.public_backbone()
        with self.store() as store:
            asked = request_groups(self.scenario, self.roster.keys)
            at_silos = self.scenario.evaluation.at_silos
            if at_silos is not None:
                check_at_silos(at_silos, asked[0].request.classes)
            self.rehearse(grid, [asked], store)
            stages = self.gather(grid, asked, store)
            product = self.synthesise(stages)
            scores: dict[str, Any] = {"accuracy": {}}
            trained = Trained()
            test = self.test_data()
            asked_models = () if at_silos is None else at_silos.models_of(DataKind.of_shape(asked[0].request.shape))
            if self.scenario.evaluation.runs and (test is not None or "convnet" in asked_models):
                with self.phase("evaluation"):
                    settings = self.scenario.evaluation
                    if test is None:  # the silos are asked about this one, and nobody about the others
                        settings = settings.model_copy(update={"learners": ("convnet",)})
                    trained = train_learners(product, settings, public, self.scenario.seed, self.console)
                    if test is not None:
                        scores = self._evaluate(product, public, test, trained)
            also = further_datasets(self, stages, public, test)
            metrics = self.finish(product, scores, stages, store, also=also)
            if at_silos is None:
                return metrics
            # The dataset is there, whatever becomes of this round.
            models = sent_models(product, trained, asked_models)
            evaluated = evaluate_at_silos(self, grid, models, stages, store)
            if evaluated is None:
                return metrics
            return self.finish(product, scores, stages, store, evaluated, also=also)

    def public_backbone(self) -> Backbone | None:
        """What the learners start from; says which backbones the method's records pass through."""
        if (words := backbone_in_words(self.scenario)) is not None:
            self.console.say(f"  {words}")
        return public_backbone(self.scenario)

    def test_data(self) -> TestData | None:
        """What the product is evaluated with; None where nothing is evaluated, which is said if it was asked for."""
        if not self.scenario.evaluation.runs:
            return None
        test = self.scenario.test_rows() if self.scenario.data.is_table else self.scenario.test_data()
        if test is None and self.scenario.evaluation.at_silos is None:
            self.console.say(
                "  nothing is evaluated: the scenario has no test data (data.test), and does not ask for an evaluation "
                "at the silos (evaluation.at_silos)"
            )
        return test

    @contextmanager
    def store(self) -> Iterator[Store]:
        """The run's store, in its folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        store = Store(self.folder / "store")
        try:
            yield store
        finally:
            store.close()

    def rehearse(self, grid: Grid, tasks: Sequence[Sequence[RequestGroup]], store: Store) -> None:
        """Ask every silo what it would do; those that would refuse are left out. DpddError below a task's quorum."""
        if self.rehearsal is None:
            return
        with self.phase("releases"):
            self.left_out = DryRound(
                grid,
                tasks,
                self.roster,
                store,
                quorum=self.scenario.exchange.quorum,
                deadline=self.rehearsal,
                console=self.console,
                fit=self.scenario.schema.fit if self.scenario.data.dataset is None else None,
            ).hold()

    def gather(self, grid: Grid, asked: Sequence[RequestGroup], store: Store) -> list[Stage]:
        """Ask every silo its request, then the later stages' of those that answered; all stages, the first first."""
        if (count := self.stages(asked)) > 1 and query(asked[0].request.method).rounds:
            return Rounds(self, grid, asked, store).gather(count)
        stages: list[Stage] = []
        for _ in range(count):
            now = self.next_stage(stages, asked, store)
            stages.append(self.aggregated(now, self.answers(grid, now, store)))
        return stages

    def stages(self, asked: Sequence[RequestGroup]) -> int:
        """How often each silo is asked."""
        request = asked[0].request
        if request.kind is Kind.DISTILLED_SET:
            return 1
        chosen = query(request.method)
        return chosen.stages(chosen.settings(request.settings))

    def next_stage(
        self, stages: Sequence[Stage], asked: Sequence[RequestGroup], store: Store
    ) -> Sequence[RequestGroup]:
        """The requests of the stage after these; the first one's are `asked`."""
        if not stages:
            return asked
        number, request = len(stages), asked[0].request
        stage_input = asked_stage_input(store.requests(), asked, number)
        if stage_input is None:
            chosen = method(request.method)
            settings = chosen.settings(request.settings)
            with self.phase("synthesis"):
                stage_input = chosen.stage_input(sums_of(stages), settings, RunDescription.of(request))
        return stage_request_groups(asked, number, stage_input, {release.silo for release in stages[0].releases})

    def aggregated(self, now: Sequence[RequestGroup], releases: Sequence[Release]) -> Stage:
        """A stage that was answered, with the sums over silos."""
        with self.phase("synthesis"):
            return self.aggregation.stage(now, releases)

    def stored(self, asked: Sequence[RequestGroup], store: Store) -> list[Release]:
        """All releases for these requests that there are, by silo name."""
        releases = [
            release
            for group in asked
            for release in store.releases(group.request.id, self.roster)
            if release.silo in group.silos
        ]
        return sorted(releases, key=lambda release: release.silo)

    def answers(self, grid: Grid, asked: Sequence[RequestGroup], store: Store) -> list[Release]:
        """Ask one stage; all releases that there are, earlier ones included, by silo name."""
        stage = asked[0].request.stage
        if list(grid.get_node_ids()):  # what nobody was asked with may still change
            for group in asked:
                store.add_request(group.request.id, group.request.encode())
        what = f"asking the silos, stage {stage}" if stage > 0 else "asking the silos"
        with self.phase("releases"):
            trouble = self.ask(grid, asked, store, what)
        releases = self.stored(asked, store)
        for release in releases:
            trouble.pop(release.silo, None)  # in trouble today, but its release is here already
        if stage > 0:
            trouble = {silo: f"stage {stage}: {why}" for silo, why in trouble.items() if silo not in self.missing}
        told = {silo for silo, _ in self.left_out.values()}
        for silo, why in trouble.items():
            if silo not in told:
                self.console.say(f"  without {silo}: {why}")
        self.missing |= trouble
        if stage > 0 and trouble and self.scenario.exchange.dropouts == "wait":
            raise waits_for(f"stage {stage}", trouble)
        check_quorum(len(releases), len(releases) + len(trouble), self.scenario.exchange.quorum, trouble)
        if not releases:
            what = f"answered stage {stage}" if stage > 0 else "released anything"
            reasons = "; ".join(f"{who}: {why}" for who, why in sorted(self.missing.items()))
            raise DpddError(f"no silo {what} ({reasons or 'no silo is connected'})")
        return releases

    def synthesise(self, stages: Sequence[Stage]) -> Product:
        """The product of the releases: from the sums over silos, or the union of what silos synthesised."""
        request, images = stages[0].asked[0].request, self.scenario.synthesis.images_per_class
        priors = self.scenario.synthesis.priors
        counts = class_counts(stages)
        lost = lost_classes(counts, request.classes, len(stages[0].releases))
        self.lost += lost
        if lost:
            self.console.say(f"  lost in noise, so nothing but noise is known of them: {', '.join(lost)}")
        with self.phase("synthesis"):
            if request.kind is Kind.DISTILLED_SET:
                sets = [opened(release, request) for release in stages[0].releases]
                return union(sets, images * images_made(request), priors)
            product = self.made(stages, request.method, self.scenario.synthesis, is_main=True)
        if priors is None and product.teacher is not None and counts is not None and counts.unequal:
            self.console.say(
                f"  classes are unequal: their noisy counts are {counts.in_words(request.classes)}; "
                "synthesis.priors says which shares labels, teacher and learners should assume"
            )
        return self.with_priors(product, stages)

    def made(
        self, stages: Sequence[Stage], by: str, asked: SynthesisSection | AlsoSection, *, is_main: bool = False
    ) -> Product:
        """What the method `by` makes of the sums over silos, with the public pool beside it where it `is_main`."""
        chosen, request = method(by), stages[0].asked[0].request
        runner = replace(self.runner, folder=self.folder / "synthesis")
        priors = self.scenario.synthesis.priors
        run = RunDescription.of(request, asked.images_per_class, runner, self.console, priors)
        settings, synthesis = chosen.settings(request.settings), chosen.synthesis_settings(asked.settings)
        if self.pool is None or self.pool.section.set == "method":
            product = chosen.synthesise(sums_of(stages), settings, synthesis, run)
        else:
            teacher = chosen.released_teacher(sums_of(stages), settings, synthesis, run)
            if teacher is None:
                return chosen.synthesise(sums_of(stages), settings, synthesis, run)
            product = self.pool.small_set(teacher, run)
        if self.pool is None or not is_main or not isinstance(product, LabelledSet):
            return product
        return self.pool.beside(product, run)

    def with_priors(self, product: Product, stages: Sequence[Stage]) -> Product:
        """A set with the class shares that are declared, if any are."""
        priors, classes = self.scenario.synthesis.priors, stages[0].asked[0].request.classes
        if priors is None or not isinstance(product, LabelledSet):
            return product
        return replace(product, priors=tuple(shares(priors, classes, class_counts(stages)).tolist()))

    def finish(
        self,
        product: Product,
        scores: dict[str, Any],
        stages: Sequence[Stage],
        store: Store,
        evaluated: EvaluationRound | None = None,
        *,
        also: Sequence[Also] = (),
        **more: Any,
    ) -> dict[str, Any]:
        """Write the dataset, the card and `metrics.json`; returns what the latter holds."""
        digest = product.save(self.folder / "dataset")
        further = save_also(self.folder, also)
        more |= compare_table(product, self.scenario, self.folder / "dataset")
        more |= compare_images(product, self.scenario)
        more |= pool_facts(self.scenario.synthesis.pool, product, self.folder / "dataset")
        releases = [release for stage in stages for release in stage.releases]
        evaluation: Sequence[Release] = ()
        if evaluated is not None:
            evaluation = evaluated.releases
            more["at_silos"] = {**evaluated.figures, "privacy": evaluation_rows(releases, evaluation)}
        figures = {**scores, **more}
        joining = {
            "outliers": self.scenario.aggregation.outliers,
            "implausible_releases": self.aggregation.findings,
            "influence": influence_rows(stage.influence for stage in stages),
            "lost_in_noise": self.lost,
            **({"also": further} if further else {}),
            **(rounds_facts(stages, self.scenario.exchange.dropouts) if self._in_rounds(stages) else {}),
        }
        write_card(
            self.folder,
            self.scenario,
            product,
            digest,
            releases,
            store,
            self.roster,
            self.missing,
            figures,
            evaluation,
            joining,
        )
        metrics = {
            "scenario": self.scenario.name,
            **scores,
            **joining,
            "privacy": privacy_rows(releases),
            "dataset": {
                "classes": len(product.classes),
                "images_per_class": self.scenario.synthesis.images_per_class,
                **product.facts,
                "sha256": digest,
            },
            "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
            **more,
        }
        (self.folder / "metrics.json").write_text(json.dumps(metrics, indent=2, ensure_ascii=False) + "\n")
        return metrics

    def _in_rounds(self, stages: Sequence[Stage]) -> bool:
        return len(stages) > 1 and query(self.scenario.method.name).rounds

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time spent in here is added to the phase `name`."""
        with self.timed(name):
            yield
        self.console.finish()

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """The same, for a small part of what the console is showing."""
        started = time.monotonic()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started

    def ask(self, grid: Grid, asked: Sequence[RequestGroup], store: Store, what: str) -> dict[str, str]:
        """Ask, and keep what comes; says what is wrong with those who sent nothing that can be kept."""
        if not list(grid.get_node_ids()):
            have = {release.silo for release in self.stored(asked, store)}
            return {silo: "was not asked" for group in asked for silo in sorted(group.silos - have)}
        asking = Asking(grid, asked, store, self.roster, self.left_out)
        self.console(what, 0, len(asking.messages))
        for done, reply in enumerate(grid.send_and_receive(asking.messages), start=1):
            asking.take(reply)
            self.console(what, done, len(asking.messages))
        return asking.trouble

    def _evaluate(
        self,
        product: Product,
        public: Backbone | None,
        test: TestData,
        trained: Trained,
    ) -> dict[str, Any]:
        """What the product is worth to those who learn from it, and how good its own classifier is."""
        scenario = self.scenario
        for name, why in trained.left_out.items():
            self.console.say(f"  without {name}: {why}")
        return evaluate(product, test, scenario.evaluation, public, scenario.seed, self.console, trained)
