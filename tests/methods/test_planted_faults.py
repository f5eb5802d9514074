"""The contract test finds what it is there to find: a method that is right passes, and each fault in a copy is caught.

The copy releases class sums of pixels and a count, in two stages, the second one centred on a public mean.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dpdd.client.mechanisms.base import Contribution, Mechanism, privatised_sum
from dpdd.client.records.records import Records
from dpdd.common.config import Settings
from dpdd.common.methods.base import DataKind, Method, RunDescription
from dpdd.common.methods.plan import Plan, gaussian_plan
from dpdd.common.methods.registry import METHODS
from dpdd.common.privacy.clipping import ClippedSum, Layout, class_segment
from dpdd.common.privacy.entropy import Entropy, SeededEntropy
from dpdd.common.privacy.events import Gaussian
from dpdd.common.privacy.privatise import Privatised, combine, numbered, privatise
from dpdd.common.progress import Progress
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.statistics import Statistics
from dpdd.common.wire.request import ReleaseRequest
from tests.methods import harness
from tests.methods.harness import CHECKS, SILO_CHECKS, Case

WEIGHT = 0.3
SIDE = 6


class NoSettings(Settings):
    """Nothing to choose."""


class ClassSums(Method[NoSettings, NoSettings], family="planted"):
    """The public half; `FAULT` says what is wrong with it."""

    def stages(self, settings: NoSettings) -> int:
        return 2

    def layout(self, settings: NoSettings, run: RunDescription, stage: int) -> Layout:
        width = SIDE * SIDE + (FAULT == "wrong layout")
        classes = len(run.classes)
        return Layout((class_segment("sums", width, classes), class_segment("count", 1, classes)))

    def stage_input(
        self, statistics: Sequence[Statistics], settings: NoSettings, run: RunDescription
    ) -> Mapping[str, NDArray]:
        return {"mean": np.full(SIDE * SIDE, 0.1, np.float32)}

    def plan(self, request: ReleaseRequest, settings: NoSettings) -> Plan:
        if request.stage and request.stage_input.keys() != {"mean"}:
            raise ValueError("the second stage has a mean")
        asked = replace(request, epsilon=2.0 * request.epsilon) if FAULT == "calibrated to twice the ε" else request
        run = RunDescription.of(request)
        plan = gaussian_plan(asked, [LAYOUT(run.classes)] * 2, 0.5)
        if FAULT == "calibrated to twice the ε":
            plan = replace(plan, guarantee=replace(plan.guarantee, epsilon=request.epsilon))
        if FAULT == "one stage is reserved" and isinstance(plan.event, Gaussian):
            plan = replace(plan, whole=plan.event)
        return plan

    def count_weight(self, settings: NoSettings, stage: int) -> float | None:
        if FAULT == "counts are not stated":
            return None
        return 2.0 * WEIGHT if FAULT == "counts weigh something else" else WEIGHT

    def synthesise(
        self,
        statistics: Sequence[Statistics],
        settings: NoSettings,
        synthesis: NoSettings,
        run: RunDescription,
    ) -> LabelledSet:
        means = statistics[0].sums["sums"] / np.maximum(statistics[0].sums["count"] / WEIGHT, 1.0)
        pixels = (255.0 * np.clip(SIDE * means, 0.0, 1.0)).astype(np.uint8).reshape(-1, 1, SIDE, SIDE)
        if FAULT == "synthesis draws from a global generator":
            pixels = pixels ^ torch.randint(256, pixels.shape, dtype=torch.uint8).numpy()
        count = 40 if FAULT == "a larger set than was asked for" else run.images_per_class
        return LabelledSet(pixels.repeat(count, 0), np.arange(len(run.classes)).repeat(count), run.classes)


class ClassSumsMechanism(Mechanism[NoSettings]):
    """The private half."""

    def run(
        self,
        records: Records,
        request: ReleaseRequest,
        settings: NoSettings,
        plan: Plan,
        entropy: Entropy,
        progress: Progress,
    ) -> Privatised:
        layout = LAYOUT(request.classes)
        mean = request.stage_input.get("mean", np.zeros(SIDE * SIDE, np.float32))
        if FAULT == "centred on private data" and len(records):
            mean = mean + np.nan_to_num(records.features[:]).reshape(len(records), -1).mean(0)
        if FAULT == "records kept on the object":
            object.__setattr__(self, "last", records)
        if FAULT == "an empty silo is an error":
            assert len(records), "no records"
        seen = [0]

        def contributions(images: NDArray[np.float32], labels: NDArray[np.int64]) -> Contribution:
            pixels = images.reshape(len(images), -1)
            if FAULT == "NaN counts as zero":
                pixels = np.nan_to_num(pixels, nan=0.0, posinf=1.0, neginf=0.0)
            values = 0.9 * (pixels - mean) / SIDE
            if FAULT == "divided by the realised number":
                values = values / max(len(records), 1)
            if FAULT == "depends on who came before":
                values = values / (1 + seen[0])
                seen[0] += 1
            return np.concatenate([values, np.full((len(images), 1), WEIGHT, np.float32)], axis=1), {}

        event = plan.event
        if FAULT == "less noise than planned" and isinstance(event, Gaussian):
            event = Gaussian(event.sigma / 2.0)
        if FAULT == "noise from a public seed":
            entropy = SeededEntropy(request.public_seed)
        if FAULT == "the same sum is released twice":
            pieces = [self._summed(records, layout, contributions, event, entropy) for _ in range(2)]
            both = combine(*(numbered(piece, number) for number, piece in enumerate(pieces)))
            return both.post_process(lambda arrays: {name: arrays[f"0 {name}"] for name in ("sums", "count")})
        if FAULT in ("added twice", "added to two classes", "less noise than planned", "depends on who came before"):
            return self._summed(records, layout, contributions, event, entropy)
        released = privatised_sum(records, layout, contributions, plan, entropy, progress)
        if FAULT == "exact counts beside noisy sums":
            true = np.bincount(records.labels, minlength=layout.classes)[:, None]
            return released.post_process(lambda arrays: {**arrays, "count": true})
        return released

    def _summed(
        self,
        records: Records,
        layout: Layout,
        contributions: Callable[[Any, Any], Contribution],
        event: Any,
        entropy: Entropy,
    ) -> Privatised:
        total = ClippedSum(layout)
        for features, labels in records.batches(1):
            total.add(contributions(features, labels)[0], labels)
            if FAULT == "added twice":
                total.add(contributions(features, labels)[0], labels)
            if FAULT == "added to two classes":
                total.add(contributions(features, labels)[0], (labels + 1) % layout.classes)
        return privatise(total, event, entropy)


def LAYOUT(classes: Sequence[str]) -> Layout:
    return Layout((class_segment("sums", SIDE * SIDE, len(classes)), class_segment("count", 1, len(classes))))


FAULT = ""
CASE = Case("planted", shape=(1, SIDE, SIDE))


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    fault = request.node.callspec.params.get("fault", "") if hasattr(request.node, "callspec") else ""
    monkeypatch.setattr(sys.modules[__name__], "FAULT", fault)
    kinds = frozenset(DataKind) if fault == "says that it takes tables" else frozenset({DataKind.IMAGE})
    monkeypatch.setitem(METHODS, "planted", ClassSums("planted", "a copy", "none", data_kinds=kinds))
    private = SimpleNamespace(MECHANISM=ClassSumsMechanism(), __name__="planted")
    monkeypatch.setitem(sys.modules, "dpdd.client.mechanisms.planted", private)
    harness.Trial.of.cache_clear()


def failures(case: Case, folder: Path) -> list[str]:
    """The checks that do not pass."""
    failed = []
    for check in (*CHECKS, *SILO_CHECKS):
        try:
            check(*((case,) if check in CHECKS else (case, folder / check.__name__)))  # type: ignore[operator]
        except Exception:
            failed.append(check.__name__.removeprefix("check_"))
    return failed


def test_without_a_fault_the_copy_passes(tmp_path: Path) -> None:
    assert failures(CASE, tmp_path) == []


@pytest.mark.parametrize(
    ("fault", "caught_by"),
    [
        ("added twice", "neighbours"),
        ("added to two classes", "neighbours"),
        ("centred on private data", "split_and_order"),
        ("divided by the realised number", "split_and_order"),
        ("depends on who came before", "split_and_order"),
        ("NaN counts as zero", "not_finite"),
        ("an empty silo is an error", "small_silos"),
        ("calibrated to twice the ε", "plan"),
        ("one stage is reserved", "plan"),
        ("less noise than planned", "event"),
        ("the same sum is released twice", "event"),
        ("noise from a public seed", "fresh_noise"),
        ("exact counts beside noisy sums", "no_side_channel"),
        ("wrong layout", "layout"),
        ("counts weigh something else", "layout"),
        ("counts are not stated", "layout"),
        ("records kept on the object", "keeps_nothing"),
        ("synthesis draws from a global generator", "statistics_finish"),
        ("a larger set than was asked for", "statistics_finish"),
    ],
)
def test_a_fault_is_caught(fault: str, caught_by: str, tmp_path: Path) -> None:
    assert caught_by in failures(CASE, tmp_path), f"{fault} passes {caught_by}"


def test_the_sensitivity_is_used_up(tmp_path: Path) -> None:
    """Else a method could hide a fault of some size under slack."""
    trial = harness.Trial.of(CASE)
    features, labels = harness.images(3, CASE.shape)
    more = np.concatenate([features, np.full((1, *CASE.shape), 1e4, np.float32)])
    moved = harness.distances(
        trial.sums(more, np.append(labels, 0), [0, 1, 2, 9], 0), trial.sums(features, labels, [0, 1, 2], 0)
    )
    assert 0.99 < max(moved) <= 1.0 and math.isfinite(max(moved))
