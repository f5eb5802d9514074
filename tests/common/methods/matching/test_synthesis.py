"""Matching's synthesis: schedules, targets, partition and expand, and images that match."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dpdd.common.data.dead_leaves import dead_leaves
from dpdd.common.methods.matching.pieces import expand
from dpdd.common.methods.matching.settings import MethodSettings, SynthesisSettings
from dpdd.common.methods.matching.signals import Draw, clipped
from dpdd.common.methods.matching.specification import auxiliary, signal_settings, signals, stage_input_shapes
from dpdd.common.methods.matching.stages import count_weight, layout
from dpdd.common.methods.matching.synthesis import MatchTask, synthesise, targets
from dpdd.common.methods.registry import method
from dpdd.common.synthesis.labelled_set import LabelledSet
from dpdd.common.synthesis.runner import SynthesisRunner
from dpdd.common.synthesis.statistics import Statistics
from tests.common.methods.matching.small import NAMES, RUN, SHAPE, settings_of

QUICK: dict[str, Any] = {"steps": 3, "classes_per_batch": 2}


def records() -> tuple[torch.Tensor, torch.Tensor]:
    """Of the last class there is nobody."""
    return torch.from_numpy(dead_leaves(40, *SHAPE, seed=6)), torch.arange(40) % 4


def statistics_of(settings: MethodSettings, noise: float = 0.0, **more: Any) -> Statistics:
    """What everybody's release at rate 1 adds up to, in plain floats: the sums as the papers would write them."""
    drawn = signals(settings, auxiliary(settings, {}, RUN), RUN)
    pictures, labels = records()
    sums, share = np.zeros((settings.draws, len(NAMES), drawn.settings.length)), settings.count_share
    for number in range(settings.draws):
        rows = clipped(torch.from_numpy(drawn.draw(number).of_records(pictures, labels))).double().numpy()
        for label, row in zip(labels.tolist(), rows, strict=True):
            sums[number, label] += math.sqrt(1.0 - share**2) * row
    counts = np.bincount(labels, minlength=len(NAMES))[:, None] * share * math.sqrt(settings.draws)
    return Statistics(
        {"signal": sums.reshape(settings.draws * len(NAMES), -1), "count": counts.astype(float)}, noise, 1, **more
    )


def task(method: MethodSettings, **changes: Any) -> MatchTask:
    parts = {"statistics": Statistics({}, 0.0, 1), "settings": SynthesisSettings(**QUICK), "run": RUN}
    return MatchTask(**{"method": method, **parts, **changes})


def synthesised(method: MethodSettings, statistics: Statistics | None = None, **changes: Any) -> LabelledSet:
    run = replace(RUN, images_per_class=3, runner=changes.pop("runner", None))
    given = statistics_of(method) if statistics is None else statistics
    return synthesise([given], method, SynthesisSettings(**QUICK | changes), run)


# Schedules ------------------------------------------------------------------------------------------------------------


def order(schedule: str, draws: int, **changes: Any) -> list[list[int]]:
    scheduled = task(settings_of(draws=draws, schedule=schedule), settings=SynthesisSettings(**QUICK | changes))
    steps = list(scheduled._order(torch.Generator().manual_seed(1)))
    assert len(steps) == scheduled.steps
    return steps


def test_coupled_uses_each_draw_once_in_order() -> None:
    for steps in (1, 5, 500):
        assert order("coupled", 9, steps=steps, draws_per_step=2) == [[number] for number in range(9)]


@pytest.mark.parametrize("draws, per_step", [(7, 1), (7, 3), (5, 2), (2, 3), (1, 4), (10, 10)])
def test_decoupled_uses_all_draws_equally_often(draws: int, per_step: int) -> None:
    found = order("decoupled", draws, steps=50, draws_per_step=per_step)
    assert all(len(step) == per_step for step in found)
    used: Counter[int] = Counter()
    for step in found:
        used.update(step)
        counts = [used[number] for number in range(draws)]
        assert max(counts) - min(counts) <= 1, "at any time"
    assert len(used) == draws
    if draws > 5:
        used_up = [number for step in found for number in step]
        first, second = used_up[:draws], used_up[draws : 2 * draws]
        assert sorted(first) == sorted(second) == list(range(draws)) and first != second


# Targets --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"dimensions": 5}, {"signal": "gradients"}, {"count_share": 0.6}])
def test_targets_undo_the_weights(changes: dict[str, Any]) -> None:
    settings = settings_of(**changes)
    wanted, known = targets(statistics_of(settings), settings, len(NAMES))
    assert wanted.shape == (6, 5, signal_settings(settings, RUN).length)
    assert known.tolist() == [True] * 4 + [False]
    drawn = signals(settings, auxiliary(settings, {}, RUN), RUN)
    pictures, labels = records()
    for number in range(6):
        rows = clipped(torch.from_numpy(drawn.draw(number).of_records(pictures, labels)))
        for label in range(4):
            torch.testing.assert_close(wanted[number, label], rows[labels == label].mean(dim=0), atol=1e-5, rtol=1e-4)


def test_targets_divide_by_the_expected_number_in_a_draw() -> None:
    """Half the sampling rate: half the sums and, through the weight, the same count of records."""
    everybody, half = settings_of(), settings_of(rate=0.5)
    full = statistics_of(everybody)
    sampled = Statistics({"signal": 0.5 * full.sums["signal"], "count": 0.5 * full.sums["count"]}, 0.0, 1)
    torch.testing.assert_close(targets(sampled, half, 5)[0], targets(full, everybody, 5)[0])
    weight = count_weight(half, 0)
    np.testing.assert_allclose(sampled.sums["count"][:, 0] / weight, [10, 10, 10, 10, 0])


def test_lost_classes_get_no_weight_and_known_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, seen = settings_of(), {}

    def spy(self: MatchTask, pyramid: Any, members: range, wanted: Any, weight: Any, generator: Any) -> Any:
        seen.update(zip(members, weight.tolist(), strict=True))
        return iter([pyramid] * self.steps)

    monkeypatch.setattr(MatchTask, "_optimise", spy)
    synthesised(settings)
    assert seen == {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0, 4: 0.0}
    noise = statistics_of(settings).sums["count"][0, 0] * 0.51  # two standard deviations are more than ten records
    synthesised(settings, statistics_of(settings, noise))
    assert set(seen.values()) == {0.0}


# Partition and expand -------------------------------------------------------------------------------------------------


def test_expanding_cuts_and_enlarges() -> None:
    images = torch.rand(3, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    assert expand(images, 1) is images
    grown = expand(images, 2)
    assert grown.shape == (12, 2, 8, 8)
    corners = [images[:, :, :4, :4], images[:, :, :4, 4:], images[:, :, 4:, :4], images[:, :, 4:, 4:]]
    for number, corner in enumerate(corners):
        piece = grown[3 * number : 3 * number + 3]
        torch.testing.assert_close(torch.nn.functional.avg_pool2d(piece, 2)[..., 1:-1, 1:-1], _blurred(corner))
        torch.testing.assert_close(piece.mean(dim=(2, 3)), corner.mean(dim=(2, 3)), atol=0.1, rtol=0.0)
    odd = expand(torch.ones(2, 1, 28, 30), 3)
    assert odd.shape == (18, 1, 28, 30) and torch.equal(odd, torch.ones_like(odd))


def _blurred(corner: torch.Tensor) -> torch.Tensor:
    """What halving the doubled picture gives inside: (1, 6, 1) / 8 in both directions."""
    kernel = torch.tensor([1.0, 6.0, 1.0]) / 8.0
    weights = (kernel[:, None] * kernel).expand(corner.shape[1], 1, 3, 3)
    return torch.nn.functional.conv2d(corner, weights, groups=corner.shape[1])


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_expanded_sets_have_parts_squared_times_as_many_images_of_each_class(parts: int) -> None:
    dataset = synthesised(settings_of(), parts=parts)
    assert dataset.images.shape == (5 * 3 * parts**2, *SHAPE) and dataset.images.dtype == np.uint8
    assert dataset.labels.tolist() == np.arange(5).repeat(3 * parts**2).tolist() and dataset.classes == NAMES


def test_pieces_keep_their_labels() -> None:
    """Every class's images are of one grey; after cutting and sorting they still are."""
    greys = np.array([10, 60, 110, 160, 210], np.uint8)

    class Grey(SynthesisRunner):
        def make(self, task: Any, numbers: Any, *_rest: Any) -> Any:
            return [np.concatenate([np.full((3, *SHAPE), greys[m]) for m in task.members(n)]) for n in numbers]

    dataset = synthesised(settings_of(), parts=2, runner=Grey())
    assert (dataset.images == greys[dataset.labels][:, None, None, None]).all()


# Synthesis ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"dimensions": 6}, {"signal": "gradients"}], ids=["features", "subspace", "g"])
def test_synthesis_closes_the_gap(changes: dict[str, Any]) -> None:
    settings = settings_of(augment=False, networks=1, draws=1, **changes)
    statistics = statistics_of(settings)
    wanted, _ = targets(statistics, settings, len(NAMES))
    drawn = signals(settings, auxiliary(settings, {}, RUN), RUN)

    def gap(steps: int) -> float:
        dataset = synthesised(settings, statistics, steps=steps)
        images, labels = torch.from_numpy(dataset.images).float() / 255.0, torch.from_numpy(dataset.labels)
        means = drawn.draw(0).of_class_means(images, labels, range(5))
        return float(task(settings)._distances(means.detach(), wanted[0])[:4].sum())

    assert gap(60) < 0.5 * gap(1)


@pytest.mark.parametrize("parts", [1, 2])
def test_images_are_compared_as_what_they_are(monkeypatch: pytest.MonkeyPatch, parts: int) -> None:
    """In the second batch as in the first: labels are those of the run, and so is the target."""
    settings, honest, seen = settings_of(signal="gradients"), Draw.of_class_means, []

    def spy(self: Draw, images: torch.Tensor, labels: torch.Tensor, classes: range) -> torch.Tensor:
        seen.append((labels.tolist(), list(classes), len(images)))
        return honest(self, images, labels, classes)

    monkeypatch.setattr(Draw, "of_class_means", spy)
    synthesised(settings, steps=1, parts=parts)
    pieces = parts**2
    assert seen == [
        ([0, 0, 0, 1, 1, 1] * pieces, [0, 1], 6 * pieces),
        ([2, 2, 2, 3, 3, 3] * pieces, [2, 3], 6 * pieces),
        ([4, 4, 4] * pieces, [4], 3 * pieces),
    ]


def test_a_lost_class_does_not_move_the_others_and_is_left_as_it_began() -> None:
    settings = settings_of()
    base = statistics_of(settings)
    spoilt = {name: array.copy() for name, array in base.sums.items()}
    spoilt["signal"][4::5] = 1e6  # what a class without records has for a sum
    one, other = synthesised(settings, base), synthesised(settings, replace(base, sums=spoilt))
    np.testing.assert_array_equal(one.images, other.images)


def test_one_and_two_workers_make_the_same_images() -> None:
    settings = settings_of(dimensions=6)
    statistics = statistics_of(settings)
    one, two = (synthesised(settings, statistics, runner=SynthesisRunner(workers=workers)) for workers in (1, 2))
    np.testing.assert_array_equal(one.images, two.images)
    assert len(np.unique(one.images)) > 20


def test_the_fingerprint_knows_everything_that_decides_a_batch() -> None:
    settings = settings_of()
    base = task(settings, statistics=statistics_of(settings))
    other = {name: array + 1.0 for name, array in base.statistics.sums.items()}
    changed = [
        replace(base, method=settings_of(flips=True)),
        replace(base, settings=SynthesisSettings(**QUICK, smoothness=0.3)),
        replace(base, run=replace(RUN, images_per_class=3)),
        replace(base, run=replace(RUN, public_seed=5)),
        replace(base, run=replace(RUN, shape=(1, 8, 9))),
        replace(base, run=replace(RUN, classes=NAMES[:4])),
        replace(base, statistics=replace(base.statistics, sums=other)),
        replace(base, statistics=replace(base.statistics, noise=0.5)),
        replace(base, statistics=replace(base.statistics, stage_input={"images": np.zeros((2, *SHAPE), np.uint8)})),
    ]
    prints = [each.fingerprint("cpu") for each in (base, *changed)] + [base.fingerprint("cuda")]
    assert len(set(prints)) == len(prints)
    assert replace(base).fingerprint("cpu") == prints[0]


# Auxiliary images -----------------------------------------------------------------------------------------------------


def generated() -> dict[str, np.ndarray]:
    """Every class has a grey of its own."""
    labels = np.arange(5).repeat(6)
    images = np.broadcast_to((40 * labels + 20).astype(np.uint8)[:, None, None, None], (30, *SHAPE))
    return {"images": np.ascontiguousarray(images), "labels": labels}


def test_synthesis_may_start_from_the_auxiliary_images() -> None:
    settings = settings_of(auxiliary="generated")
    statistics = statistics_of(settings, stage_input=generated())
    gentle = {"steps": 1, "learning_rate": 1e-6}
    dataset = synthesised(settings, statistics, start="auxiliary", **gentle)
    for label in range(5):
        np.testing.assert_allclose(dataset.images[dataset.labels == label], 40 * label + 20, atol=1)
    noise = synthesised(settings, statistics, start="noise", **gentle)
    assert noise.images.astype(float).std() > 20 and not np.array_equal(noise.images, dataset.images)
    leaves = synthesised(settings_of(), start="auxiliary", **gentle)  # leaves have no classes to start from
    np.testing.assert_array_equal(leaves.images, synthesised(settings_of(), start="noise", **gentle).images)


def test_what_the_second_stage_is_asked_with_is_what_silos_expect() -> None:
    quick = {"steps": 2, "hidden": 8, "batch": 10}
    settings = settings_of(auxiliary="generated", auxiliary_images=12, generator_synthesis=quick)
    sums = {each.name: np.ones((each.rows, each.width)) for each in layout(settings, RUN, 0).segments}
    given = method("dosser").stage_input([Statistics(sums, 0.0, 1)], settings, RUN)
    assert {name: array.shape for name, array in given.items()} == stage_input_shapes(settings, RUN)
    assert given["images"].dtype == np.uint8 and given["labels"].dtype == np.int64
    assert np.bincount(given["labels"]).tolist() == [3] * 5
    pictures = auxiliary(settings, given, RUN)
    assert pictures.dtype == np.float32 and pictures.min() >= 0.0 and pictures.max() <= 1.0
    np.testing.assert_array_equal(np.rint(pictures * 255.0), given["images"])


@pytest.mark.parametrize(
    ("per_class", "parts", "wanted"), [(2, 1, [5]), (10, 1, [5]), (20, 1, [2, 2, 1]), (4, 2, [3, 2]), (60, 1, [1] * 5)]
)
def test_batches_hold_as_many_classes_as_are_fast_together(per_class: int, parts: int, wanted: list[int]) -> None:
    made = task(settings_of(), settings=SynthesisSettings(parts=parts), run=replace(RUN, images_per_class=per_class))
    assert [len(made.members(number)) for number in range(made.batches)] == wanted
