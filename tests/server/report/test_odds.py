"""An attacker's odds: never below what an attacker reaches, and reached by the worst mechanism that (ε, δ) allows."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from dpdd.common.privacy.accounting import gaussian_delta
from dpdd.server.report.odds import most_often_right, odds_in_words, percent_at_most


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.01])
def test_the_worst_mechanism_reaches_them(epsilon: float, delta: float) -> None:
    """With probability δ it says which of two neighbours it had; otherwise it answers by randomised response."""
    truth = math.exp(epsilon) / (1.0 + math.exp(epsilon))
    chances = np.array([[delta, (1 - delta) * truth, (1 - delta) * (1 - truth), 0.0]])
    both = np.vstack([chances, chances[:, ::-1]])
    assert np.maximum(both[0] - math.exp(epsilon) * both[1], 0.0).sum() == pytest.approx(delta, abs=1e-12)
    right = 0.5 * np.maximum(both[0], both[1]).sum()
    assert right == pytest.approx(most_often_right(epsilon, delta), abs=1e-12)


@pytest.mark.parametrize("mu", [0.1, 0.268, 1.0, 3.0])
def test_a_gaussian_release_stays_below_them(mu: float) -> None:
    right = norm.cdf(mu / 2.0)  # the likelihood ratio's best threshold, with even odds
    for epsilon in (0.01, 0.5, 1.0, 2.0, 8.0):
        assert right <= most_often_right(epsilon, gaussian_delta(mu, epsilon)) + 1e-12


def test_what_is_printed_is_rounded_up() -> None:
    for epsilon in np.linspace(0.0, 9.0, 50):
        share = most_often_right(float(epsilon), 1e-5)
        assert 100.0 * share - 1e-6 <= float(percent_at_most(share)) <= 100.0 * share + 0.1


def test_the_table_in_docs_is_this() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "comparing.md").read_text()
    header, _, row = (
        line for line in page.splitlines() if line.startswith(("| ε (", "| --- | --- | --- | ---", "| right"))
    )
    epsilons, shown = ([cell.strip() for cell in line.strip("|").split("|")][1:] for line in (header, row))
    assert shown == [percent_at_most(most_often_right(float(each), 1e-5)) for each in epsilons] and len(shown) == 6


def test_without_a_promise_there_is_no_bound() -> None:
    assert most_often_right(None, 1e-5) == most_often_right(math.inf, 1e-5) == 1.0
    assert "no bound" in odds_in_words(None, 1e-5)
    assert most_often_right(800.0, 1e-5) == 1.0  # and nothing overflows
