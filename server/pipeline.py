"""From a scenario and a Flower grid to a finished run folder. Asking again is free: silos repeat themselves."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpdd.common import flower  # first: it turns Flower's telemetry off

# isort: split
from flwr.serverapp import Grid

from dpdd.common import datasets
from dpdd.common.errors import ConfigError, DpddError, IntegrityError, WireError
from dpdd.common.methods import method
from dpdd.common.progress import Console
from dpdd.common.scenario import Scenario
from dpdd.common.synthesis.dataset import SyntheticSet
from dpdd.common.wire.answer import Refusal, decode_answer
from dpdd.common.wire.release import Release
from dpdd.common.wire.request import Kind
from dpdd.server import aggregate, evaluate
from dpdd.server.card import privacy_rows, write_card
from dpdd.server.questions import Question, make_request, questions
from dpdd.server.roster import Roster
from dpdd.server.store import Store
from dpdd.server.union import opened, union

__all__ = ["Run", "make_request"]


@dataclass
class Run:
    """One run of a scenario in its folder."""

    scenario: Scenario
    folder: Path
    roster: Roster
    console: Console
    seconds: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def execute(self, grid: Grid) -> dict[str, Any]:
        """Ask, aggregate, synthesise, evaluate, write; returns what `metrics.json` holds."""
        self.scenario.privacy.check_silos(self.roster.keys)
        with self.store() as store:
            asked = questions(self.scenario, self.roster.keys)
            releases = self.gather(grid, asked, store)
            made = self.synthesise(asked, releases)
            accuracy: dict[str, Any] = {}
            if self.scenario.evaluation.runs:
                with self.phase("evaluation"):
                    accuracy["convnet"] = self._evaluate(made)
            return self.finish(made, accuracy, asked, releases, store)

    @contextmanager
    def store(self) -> Iterator[Store]:
        """The run's store, in its folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        store = Store(self.folder / "store")
        try:
            yield store
        finally:
            store.close()

    def gather(self, grid: Grid, asked: Sequence[Question], store: Store) -> list[Release]:
        """Ask every silo its question; all releases that there are, earlier ones included, by silo name."""
        for question in asked:
            store.add_request(question.request.id, question.request.encode())
        with self.phase("releases"):
            trouble = self._ask(grid, asked, store)
        releases = [
            release
            for question in asked
            for release in store.releases(question.request.id, self.roster)
            if release.silo in question.silos
        ]
        for release in releases:
            trouble.pop(release.silo, None)  # in trouble today, but its release is here already
        for silo, why in trouble.items():
            self.console.say(f"  without {silo}: {why}")
        self.missing |= trouble
        if not releases:
            reasons = "; ".join(f"{who}: {why}" for who, why in sorted(self.missing.items()))
            raise DpddError(f"no silo released anything ({reasons or 'no silo is connected'})")
        return sorted(releases, key=lambda release: release.silo)

    def synthesise(self, asked: Sequence[Question], releases: Sequence[Release]) -> SyntheticSet:
        """Images from the releases: synthesised from the aggregate, or the union of what silos synthesised."""
        request, images = asked[0].request, self.scenario.synthesis.images_per_class
        with self.phase("synthesis"):
            if request.kind is Kind.DISTILLED_SET:
                return union([opened(release, request) for release in releases], images)
            module = method(request.method).synthesis()
            settings = module.MethodSettings.model_validate(request.settings)
            layout = module.layout(settings, len(request.classes))
            made: SyntheticSet = module.synthesise(
                aggregate.aggregate(releases, layout, self.scenario.method.aggregation, settings),
                settings,
                module.SynthesisSettings.model_validate(self.scenario.synthesis.settings),
                classes=request.classes,
                shape=request.shape,
                images_per_class=images,
                public_seed=request.public_seed,
                progress=self.console,
            )
            return made

    def finish(
        self,
        made: SyntheticSet,
        accuracy: dict[str, Any],
        asked: Sequence[Question],
        releases: Sequence[Release],
        store: Store,
        **more: Any,
    ) -> dict[str, Any]:
        """Write the dataset, the card and `metrics.json`; returns what the latter holds."""
        digest = made.save(self.folder / "dataset")
        digests = {silo: sha for question in asked for silo, sha in store.digests(question.request.id).items()}
        write_card(self.folder, self.scenario, made, digest, releases, digests, self.roster, self.missing)
        metrics = {
            "scenario": self.scenario.name,
            "accuracy": accuracy,
            "privacy": privacy_rows(releases),
            "dataset": {
                "classes": len(made.classes),
                "images_per_class": self.scenario.synthesis.images_per_class,
                "images": len(made),
                "sha256": digest,
            },
            "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
            **more,
        }
        (self.folder / "metrics.json").write_text(json.dumps(metrics, indent=2, ensure_ascii=False) + "\n")
        return metrics

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time spent in here is added to the phase `name`."""
        started = time.monotonic()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started
        self.console.finish()

    def _ask(self, grid: Grid, asked: Sequence[Question], store: Store) -> dict[str, str]:
        """Ask, and keep what comes; says what is wrong with those who sent nothing that can be kept."""
        trouble: dict[str, str] = {}
        nodes = sorted(grid.get_node_ids())
        names = silos_of(grid, nodes)
        to = {node: question for node in nodes if (question := _question_for(node, names, asked)) is not None}
        messages = [
            grid.create_message(
                flower.pack(question.request.encode(), "dpdd.v1.ReleaseRequest"),
                flower.ACTION,
                node,
                str(question.request.stage),
            )
            for node, question in to.items()
        ]
        self.console("asking the silos", 0, len(messages))
        for done, reply in enumerate(grid.send_and_receive(messages), start=1):
            node = reply.metadata.src_node_id
            who = names.get(node, f"node {node}")
            if reply.has_error():
                trouble[who] = str(reply.error.reason)
                continue
            try:
                answer = decode_answer(flower.unpack(reply.content, "dpdd.v1.Answer"))
                if isinstance(answer, Refusal):
                    trouble[answer.silo] = f"refused ({answer.reason.words}): {answer.message}"
                else:
                    _keep(answer.data, to[node], store, self.roster)
            except (WireError, DpddError) as error:
                trouble[who] = f"sent something unusable: {error}"
            self.console("asking the silos", done, len(messages))
        return trouble

    def _evaluate(self, made: SyntheticSet) -> dict[str, Any]:
        test = datasets.load(self.scenario.data.dataset, "test")
        score = evaluate.convnet_accuracy(made, test, self.scenario.evaluation, self.scenario.seed, self.console)
        return {"mean": score.mean, "std": score.std, "runs": list(score.runs)}


def silos_of(grid: Grid, nodes: Sequence[int]) -> dict[int, str]:
    """Which silo each node is, where the grid knows (it has a method `silo_of(node)`); Flower's own grids do not."""
    silo_of = getattr(grid, "silo_of", None)
    return {} if silo_of is None else {node: silo_of(node) for node in nodes}


def _question_for(node: int, names: dict[int, str], asked: Sequence[Question]) -> Question | None:
    if node in names:
        return next((question for question in asked if names[node] in question.silos), None)
    if len(asked) > 1:
        raise ConfigError("silos are asked for different ε, and this engine does not say which node is which silo")
    return asked[0]


def _keep(data: bytes, question: Question, store: Store, roster: Roster) -> None:
    release = store.add(data, question.request.id, roster)
    if release.silo not in question.silos:
        raise IntegrityError(f"silo {release.silo} answered a request that was for others")
