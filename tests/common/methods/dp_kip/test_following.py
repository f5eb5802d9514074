"""Following gradients as they come gives what going through all of them does, whatever was followed before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.dp_kip import following
from dpdd.common.methods.dp_kip.descent import Descent, descend
from dpdd.common.methods.dp_kip.following import followed
from dpdd.common.methods.dp_kip.settings import GradientSettings
from dpdd.common.synthesis.statistics import Statistics

RUN = RunDescription(("a", "b", "c"), (1, 4, 5), 3, images_per_class=2)
SETTINGS = GradientSettings(support_per_class=2, steps=6)


def statistics(count: int, seed: int = 1) -> list[Statistics]:
    generator = np.random.Generator(np.random.PCG64(seed))
    return [Statistics({"gradient": generator.standard_normal((1, 120))}, 1.0, 1) for _ in range(count)]


def check(given: Sequence[Statistics], settings: GradientSettings = SETTINGS, run: RunDescription = RUN) -> None:
    expected = descend((each.sums["gradient"] / each.silos for each in given), settings, run)
    for one, other in zip(followed(given, settings, run), expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_longer_shorter_and_other_sequences_settings_and_runs() -> None:
    given = statistics(6)
    for count in (1, 3, 6, 2, 5):
        check(given[:count])
    check([*given[:2], *statistics(3, seed=2)])
    check(given)
    check(given, SETTINGS.model_copy(update={"learning_rate": 0.1}))
    check(given, run=replace(RUN, public_seed=4))


def test_equal_sums_in_other_objects_are_the_same_sequence_and_changed_ones_are_not() -> None:
    check(statistics(4))
    check(statistics(5))
    late = statistics(5)
    late[1] = Statistics({"gradient": late[1].sums["gradient"] + 1e-12}, 1.0, 2)
    check(late)


def test_a_new_gradient_takes_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, original = [0], Descent.along

    def along(descent: Descent, gradient: np.ndarray) -> Descent:
        steps[0] += 1
        return original(descent, gradient)

    monkeypatch.setattr(following.Descent, "along", along)
    given = statistics(40, seed=7)
    for count in range(1, 41):
        followed(given[:count], SETTINGS, RUN)
    assert steps[0] == 40
