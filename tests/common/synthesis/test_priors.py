"""Declared class priors: which shares they mean, what noisy counts say, and what cannot be declared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdd.common.config import Settings, validate
from dpdd.common.errors import ConfigError
from dpdd.common.synthesis.priors import ClassCounts, Priors, checked, log_shift, released_counts, shares
from dpdd.common.synthesis.statistics import Statistics

CLASSES = ("cat", "dog", "emu")


def counted(*counts: float, known: tuple[bool, ...] | None = None) -> ClassCounts:
    return ClassCounts(np.array(counts), np.array(known or (True,) * len(counts)))


counts_of_classes = st.lists(st.floats(1.0, 1e6), min_size=3, max_size=3)


@given(counts_of_classes)
def test_given_priors_that_are_those_released_are_the_same(counts: list[float]) -> None:
    found = counted(*counts)
    released = shares("as-released", CLASSES, found)
    given_ones: dict[str, float] = dict(zip(CLASSES, released.tolist(), strict=True))
    np.testing.assert_allclose(shares(given_ones, CLASSES, found), released, rtol=1e-12)
    np.testing.assert_allclose(released, np.array(counts) / sum(counts), rtol=1e-12)


@given(counts_of_classes, st.lists(st.booleans(), min_size=3, max_size=3), st.permutations(range(3)))
def test_shares_are_shares_in_any_order(counts: list[float], known: list[bool], order: list[int]) -> None:
    declared: tuple[Priors, ...] = ("as-released", "equal", {"cat": 0.98, "dog": 0.0199999999, "emu": 1e-10})
    turned = tuple(CLASSES[label] for label in order)
    for priors in declared:
        found = shares(priors, CLASSES, counted(*counts, known=tuple(known)))
        assert found.sum() == pytest.approx(1.0) and (found > 0.0).all()
        again = shares(priors, turned, ClassCounts(np.array(counts)[order], np.array(known)[order]))
        np.testing.assert_allclose(again, found[order], rtol=1e-12)


def test_a_class_that_is_lost_has_the_share_of_one_record_whatever_is_declared() -> None:
    found = counted(600.0, 400.0, 30.0, known=(True, True, False))
    for priors in ("as-released", "equal", {"cat": 0.3, "dog": 0.3, "emu": 0.4}):
        assert shares(priors, CLASSES, found)[2] == pytest.approx(1 / 1001)  # type: ignore[arg-type]
    np.testing.assert_allclose(shares("equal", CLASSES, found)[:2], 0.5 * 1000 / 1001)
    np.testing.assert_allclose(shares("as-released", CLASSES, found)[:2], np.array([0.6, 0.4]) * 1000 / 1001)


def test_of_some_classes_given_priors_are_those_among_them() -> None:
    np.testing.assert_allclose(shares({"cat": 0.6, "dog": 0.2, "emu": 0.2}, ("emu", "cat")), [0.25, 0.75])


def test_stages_are_weighed_by_their_precision() -> None:
    """As little noise as one release with the whole budget would have, and no bias."""
    generator, true = np.random.default_rng(0), np.array([900.0, 90.0])
    noises, weights = (3.0, 6.0, 6.0), (0.1, 0.1, 0.2)
    best = sum((weight / noise) ** 2 for noise, weight in zip(noises, weights, strict=True)) ** -0.5
    errors = []
    for _ in range(400):
        stages = [
            Statistics({"count": weight * true[:, None] + noise * generator.normal(size=(2, 1))}, noise, 1)
            for noise, weight in zip(noises, weights, strict=True)
        ]
        found = released_counts(stages, weights)
        assert found is not None and found.noise == pytest.approx(best)
        np.testing.assert_array_equal(found.known, found.counts > 2.0 * best)
        errors.append(found.counts - true)
    assert np.std(errors) == pytest.approx(best, rel=0.1) and abs(np.mean(errors)) < 3.0 * best / 800**0.5
    clean = Statistics({"count": 0.1 * true[:, None]}, 0.0, 1)
    exact = released_counts([stages[0], clean], (0.1, 0.1))
    assert exact is not None
    np.testing.assert_allclose(exact.counts, true)
    assert released_counts([clean], (None,)) is None


@given(st.lists(st.floats(1e-9, 1.0), min_size=3, max_size=3), st.lists(st.floats(1e-9, 1.0), min_size=3, max_size=3))
def test_a_shift_is_undone_by_the_one_back(one: list[float], other: list[float]) -> None:
    before, after = np.array(one) / sum(one), np.array(other) / sum(other)
    np.testing.assert_allclose(log_shift(before, after) + log_shift(after, before), 0.0, atol=1e-12)
    powers = before * np.exp(log_shift(before, after))
    np.testing.assert_allclose(powers / powers.sum(), after, rtol=1e-9)


class Declaring(Settings):
    priors: Priors | None = None


@pytest.mark.parametrize("priors", [None, "equal", "as-released", {"cat": 0.5, "dog": 0.25, "emu": 0.25}])
def test_what_may_be_declared(priors: Any) -> None:
    assert validate({"priors": priors}, Declaring, "x").priors == priors == checked(priors, CLASSES)


@pytest.mark.parametrize(
    ("priors", "words"),
    [
        ("as released", 'priors are "as-released", "equal", or a table'),
        (0.5, 'priors are "as-released", "equal", or a table'),
        ([0.5, 0.5], 'priors are "as-released", "equal", or a table'),
        ({"cat": 0.0, "dog": 0.5, "emu": 0.5}, "the prior of cat is a share above 0 and up to 1, not 0.0"),
        ({"cat": float("nan"), "dog": 0.5, "emu": 0.5}, "the prior of cat is a share above 0"),
        ({"cat": True}, "the prior of cat is a share above 0 and up to 1, not True"),
        ({"cat": "half"}, "the prior of cat is a share above 0 and up to 1, not 'half'"),
        ({"cat": 0.5, "dog": 0.3, "emu": 0.3}, "the priors add up to 1.1, not to 1"),
        ({}, "the priors add up to 0, not to 1"),
    ],
)
def test_what_cannot_be_declared(priors: Any, words: str) -> None:
    for attempt in (lambda: checked(priors, CLASSES), lambda: validate({"priors": priors}, Declaring, "file")):
        with pytest.raises(ConfigError, match=words):
            attempt()


def test_given_priors_are_of_all_classes_and_no_others() -> None:
    with pytest.raises(ConfigError, match="'emu' has none; the classes are cat, dog, emu"):
        checked({"cat": 0.5, "dog": 0.5}, CLASSES)
    with pytest.raises(ConfigError, match="'fox' is no class; the classes are cat, dog"):
        checked({"cat": 0.5, "dog": 0.3, "fox": 0.2}, ("cat", "dog"))
    with pytest.raises(ConfigError, match="no class counts: declare equal priors, or give them"):
        checked("as-released", CLASSES, counted=False)
    with pytest.raises(ConfigError, match="no class counts"):
        shares("as-released", CLASSES)
