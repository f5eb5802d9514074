"""From a scenario and a Flower grid to a finished run folder. Asking again is free: silos repeat themselves."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpdd.common import flower  # first: it turns Flower's telemetry off

# isort: split
from flwr.serverapp import Grid

from dpdd.common import datasets
from dpdd.common.errors import DpddError, WireError
from dpdd.common.methods import method
from dpdd.common.progress import Console
from dpdd.common.scenario import Scenario
from dpdd.common.synthesis.dataset import SyntheticSet
from dpdd.common.wire.answer import Refusal, decode_answer
from dpdd.common.wire.release import Release
from dpdd.common.wire.request import ReleaseRequest
from dpdd.server import aggregate, evaluate
from dpdd.server.card import privacy_rows, write_card
from dpdd.server.roster import Roster
from dpdd.server.store import Store


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
        self.folder.mkdir(parents=True, exist_ok=True)
        store = Store(self.folder / "store")
        try:
            request = make_request(self.scenario)
            store.add_request(request.id, request.encode())
            with self._phase("releases"):
                self._ask(grid, request, store)
            releases = store.releases(request.id, self.roster)
            if not releases:
                reasons = "; ".join(f"{who}: {why}" for who, why in sorted(self.missing.items()))
                raise DpddError(f"no silo released anything ({reasons or 'no silo is connected'})")
            with self._phase("synthesis"):
                made = self._synthesise(request, releases)
            digest = made.save(self.folder / "dataset")
            accuracy: dict[str, Any] = {}
            if self.scenario.evaluation.runs:
                with self._phase("evaluation"):
                    accuracy["convnet"] = self._evaluate(made)
            write_card(
                self.folder,
                self.scenario,
                made,
                digest,
                releases,
                store.digests(request.id),
                self.roster,
                self.missing,
            )
            metrics = {
                "scenario": self.scenario.name,
                "accuracy": accuracy,
                "privacy": privacy_rows(releases),
                "dataset": {
                    "classes": len(made.classes),
                    "images_per_class": self.scenario.synthesis.images_per_class,
                    "sha256": digest,
                },
                "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
            }
            (self.folder / "metrics.json").write_text(json.dumps(metrics, indent=2, ensure_ascii=False) + "\n")
            return metrics
        finally:
            store.close()

    def _ask(self, grid: Grid, request: ReleaseRequest, store: Store) -> None:
        content = flower.pack(request.encode(), "dpdd.v1.ReleaseRequest")
        nodes = sorted(grid.get_node_ids())
        messages = [grid.create_message(content, flower.ACTION, node, str(request.stage)) for node in nodes]
        self.console("asking the silos", 0, len(nodes))
        for done, reply in enumerate(grid.send_and_receive(messages), start=1):
            node = f"node {reply.metadata.src_node_id}"
            if reply.has_error():
                self.missing[node] = str(reply.error.reason)
                continue
            try:
                answer = decode_answer(flower.unpack(reply.content, "dpdd.v1.Answer"))
                if isinstance(answer, Refusal):
                    self.missing[answer.silo] = f"refused ({answer.reason.words}): {answer.message}"
                else:
                    store.add(answer.data, request.id, self.roster)
            except (WireError, DpddError) as error:
                self.missing[node] = f"sent something unusable: {error}"
            self.console("asking the silos", done, len(nodes))
        for silo, why in self.missing.items():
            self.console.say(f"  without {silo}: {why}")

    def _synthesise(self, request: ReleaseRequest, releases: list[Release]) -> SyntheticSet:
        module = method(request.method).synthesis()
        settings = module.MethodSettings.model_validate(request.settings)
        statistics = aggregate.add_up(releases, module.layout(settings, len(request.classes)))
        made: SyntheticSet = module.synthesise(
            statistics,
            settings,
            module.SynthesisSettings.model_validate(self.scenario.synthesis.settings),
            classes=request.classes,
            shape=request.shape,
            images_per_class=self.scenario.synthesis.images_per_class,
            public_seed=request.public_seed,
            progress=self.console,
        )
        return made

    def _evaluate(self, made: SyntheticSet) -> dict[str, Any]:
        test = datasets.load(self.scenario.data.dataset, "test")
        score = evaluate.convnet_accuracy(made, test, self.scenario.evaluation, self.scenario.seed, self.console)
        return {"mean": score.mean, "std": score.std, "runs": list(score.runs)}

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - started
        self.console.finish()


def make_request(scenario: Scenario) -> ReleaseRequest:
    """What this scenario asks of every silo."""
    test = datasets.load(scenario.data.dataset, "test")
    chosen = method(scenario.method.name)
    settings = chosen.settings(scenario.method.settings)
    return ReleaseRequest(
        run=scenario.name,
        method=scenario.method.name,
        kind=scenario.method.kind,
        settings=settings.model_dump(mode="json"),
        epsilon=scenario.privacy.epsilon,
        delta=scenario.privacy.delta,
        classes=test.classes,
        shape=test.shape,
        public_seed=scenario.seed,
    )
