"""LiRA: the arithmetic of its scores and curves, and a small setting in which it works without noise alone."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from dpdd.common.errors import ConfigError
from dpdd.scenarios.audit.lira import LiraSetting, attacked, likelihood_ratios
from dpdd.scenarios.audit.roc import as_svg, roc


@pytest.mark.slow
def test_the_attack_works_without_noise_and_is_chance_at_epsilon_one() -> None:
    setting = LiraSetting(worlds=20, candidates=40, mixtures=12)
    open_, private = attacked(setting, math.inf), attacked(setting, 1.0)
    assert open_.auc > 0.7 and open_.tpr_at(0.05) > 2.0 * open_.found_by_chance(0.05)
    assert abs(private.auc - 0.5) < 0.1 and private.tpr_at(0.05) <= private.found_by_chance(0.05)
    assert private.tpr_at(0.001) <= private.found_by_chance(0.001)


def test_ratios_are_those_of_the_two_fitted_gaussians() -> None:
    draws = np.random.Generator(np.random.PCG64(1))
    present = draws.random((400, 3)) < 0.5
    found = likelihood_ratios(2.0 * present + draws.standard_normal(present.shape), present)
    exact = (2.0 * present + 0.0 - 1.0) * 2.0
    assert roc(found, present).auc > 0.9 and np.corrcoef(found.ravel(), exact.ravel())[0, 1] > 0.6


def test_ratios_of_scores_that_say_nothing_say_nothing() -> None:
    draws = np.random.Generator(np.random.PCG64(2))
    present = draws.random((60, 30)) < 0.5
    assert abs(roc(likelihood_ratios(draws.standard_normal(present.shape), present), present).auc - 0.5) < 0.05


def test_area_and_shares_are_those_of_all_pairs() -> None:
    draws = np.random.Generator(np.random.PCG64(3))
    scores, members = draws.integers(0, 6, 200).astype(float), draws.random(200) < 0.4
    curve = roc(scores, members)
    pairs = scores[members][:, None] - scores[~members][None]
    assert math.isclose(curve.auc, ((pairs > 0) + 0.5 * (pairs == 0)).mean())
    for allowed in (0.0, 0.1, 0.5):
        best = max((scores[members] >= t).mean() for t in [*range(7), 9] if (scores[~members] >= t).mean() <= allowed)
        assert curve.tpr_at(allowed) == best


def test_chance_is_exceeded_as_often_as_is_said() -> None:
    draws = np.random.Generator(np.random.PCG64(4))
    members = np.arange(2000) < 1000
    above = 0
    for _ in range(400):
        curve = roc(draws.random(2000), members)
        above += curve.tpr_at(0.01) > curve.found_by_chance(0.01)
    assert above <= 4


def test_the_drawing_is_well_formed_and_names_its_curves() -> None:
    curve = roc(np.arange(50.0), np.arange(50) % 2 == 0)
    text = as_svg({"no noise": curve, "ε = 1": curve}, "title")
    words = [each.text for each in ET.fromstring(text).iter() if each.text and each.text.strip()]
    assert {"title", "no noise", "ε = 1", "0.1 %", "100 %"} <= set(words)


@pytest.mark.parametrize("values", [{"worlds": 2}, {"candidates": 5}])
def test_too_few_are_an_error(values: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="8 worlds"):
        LiraSetting(**values)
