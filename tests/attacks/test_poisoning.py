"""One silo of five, with a real key, sends sums that can be added up and are lies: what is seen, what it moves.

Every attack first meets the old behaviour: nothing is said, the rule is `sum`, and the result is not the others'.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpdd.common.errors import DpddError
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.registry import method
from dpdd.common.methods.request_plan import plan_of
from dpdd.common.privacy.clipping import FIXED_POINT_ONE
from dpdd.common.synthesis.statistics import Statistics
from dpdd.common.wire.release import Release
from dpdd.server.aggregation.influence import of_sums
from dpdd.server.aggregation.plausibility import Design, implausible, noisy_counts
from dpdd.server.aggregation.rules import RULES, aggregate
from dpdd.server.aggregation.usable import check_statistics
from dpdd.server.cli import main as server
from tests.attacks.test_bad_silo import Forgery, altered, prepared, with_arrays
from tests.client.silos import CLASSES, make_request, make_silo
from tests.server.releases import as_asked

REQUEST = make_request(settings={"features": 64})
MERF: Any = method("dp-merf")
SETTINGS = MERF.settings(REQUEST.settings)
LAYOUT = MERF.layout(SETTINGS, RunDescription.of(REQUEST), 0)
WEIGHT = MERF.count_weight(SETTINGS, 0)
BAD = "east"


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> list[Release]:
    """The releases of five silos with 1000 records of each class, alike but for their noise; that of `BAD` is first."""
    folder = tmp_path_factory.mktemp("silos")
    releases = []
    for seed, name in enumerate((BAD, "north", "south", "west", "middle")):
        silo = make_silo(folder / name, records=3000, seed=seed, extra=f"[simulation]\nnoise_seed = {seed}")
        releases.append(as_asked(silo.answer(REQUEST.encode()).data, REQUEST))  # type: ignore[union-attr]
    return releases


def times(factor: float, *names: str) -> Forgery:
    return with_arrays(
        lambda arrays: {
            name: np.rint(factor * array).astype(np.int64) if name in names else array for name, array in arrays.items()
        }
    )


def noise_alone(release: Release) -> Release:
    sigma, generator = plan_of(REQUEST).event.sigma * FIXED_POINT_ONE, np.random.default_rng(1)  # type: ignore[union-attr]
    arrays = {
        name: np.rint(sigma * generator.standard_normal(array.shape)).astype(np.int64)
        for name, array in release.arrays.items()
    }
    return altered(release, arrays=arrays)


ATTACKS: dict[str, tuple[Forgery, str | None, float]] = {
    # what the silo does, what is seen of it, how far it moves the sum's means at least (in their norm)
    "sums 1000 times too large": (times(1000.0, "embedding"), "'embedding' are .* times what the records", 100.0),
    "everything 1000 times too large": (times(1000.0, "embedding", "count"), None, 0.0),
    "inflated counts": (times(50.0, "count"), None, 0.8),
    "flipped signs": (times(-1.0, "embedding"), None, 0.3),
    "everything flipped": (times(-1.0, "embedding", "count"), "counts -.* records of", 0.0),
    "noise alone": (noise_alone, None, 0.0),
}


def means(total: Statistics) -> np.ndarray:
    """Statistics per record of each class."""
    return np.asarray(total.sums["embedding"] / (total.sums["count"] / WEIGHT))


def moved(rule: str, releases: list[Release], others: list[Release]) -> float:
    """How far the means of all are from those of `others`, in their norm."""
    right = means(aggregate(others, LAYOUT, "sum", WEIGHT))
    found = means(aggregate(releases, LAYOUT, rule, WEIGHT))
    return float(np.linalg.norm(found - right) / np.linalg.norm(right))


def seen(release: Release) -> list[str]:
    design = Design.of(LAYOUT, WEIGHT, plan_of(REQUEST).event, CLASSES)
    assert design is not None
    return implausible(release.arrays, design)


def noise_of_one(honest: list[Release]) -> float:
    """How far the means of a single silo are from those of all, by noise."""
    return float(np.mean([moved("sum", [release], honest) for release in honest]))


@pytest.mark.parametrize(("forgery", "words", "least"), ATTACKS.values(), ids=ATTACKS)
def test_a_liar_moves_the_sum_and_hardly_the_robust_means(
    honest: list[Release], forgery: Forgery, words: str | None, least: float
) -> None:
    liar, others = forgery(honest[0]), honest[1:]
    check_statistics(liar, LAYOUT, WEIGHT, 5)  # what there was to say of it
    assert moved("sum", [liar, *others], others) >= least
    found = seen(liar)
    if words is None:
        assert found == []  # within the norms: some records would give such a release
    else:
        assert re.search(words, "; ".join(found)), found
    assert moved("robust", [liar, *others], others) < 1.2 * noise_of_one(honest)


def test_honest_releases_are_plausible_and_robust_leaves_them_as_they_are(honest: list[Release]) -> None:
    assert [seen(release) for release in honest] == [[]] * 5
    robust, precision = (means(aggregate(honest, LAYOUT, rule, WEIGHT)) for rule in ("robust", "precision"))
    assert np.linalg.norm(robust - precision) < 0.05 * noise_of_one(honest) * np.linalg.norm(precision)


@pytest.mark.parametrize("name", ["sums 1000 times too large", "flipped signs", "inflated counts"])
def test_two_of_five_that_collude_are_outvoted_and_three_are_not(honest: list[Release], name: str) -> None:
    liars, others = [ATTACKS[name][0](each) for each in honest[:2]], honest[2:]
    assert moved("robust", [*liars, *others], others) < 3.0 * noise_of_one(honest)
    assert moved("sum", [*liars, *others], others) > 0.5
    three = [ATTACKS[name][0](each) for each in honest[:3]]
    assert moved("robust", [*three, *honest[3:]], honest[3:]) > 0.5  # the majority says what is true


def test_a_liar_who_counts_otherwise_in_a_later_stage_contradicts_itself(honest: list[Release]) -> None:
    design = Design.of(LAYOUT, WEIGHT, plan_of(REQUEST).event, CLASSES)
    assert design is not None
    first = noisy_counts(honest[0].arrays, design)
    assert implausible(honest[0].arrays, design, first=first) == []
    inflated = times(1.5, "count")(honest[0])
    assert "in its first stage it counted" in implausible(inflated.arrays, design, first=first)[0]
    assert "it declares 100000 public" in implausible(honest[0].arrays, design, (1000, 100_000, 1000))[0]


def test_whoever_moved_the_result_stands_out(honest: list[Release]) -> None:
    def influence(releases: list[Release], rule: str) -> dict[str, float]:
        total = aggregate(releases, LAYOUT, rule, WEIGHT)
        found = of_sums(releases, LAYOUT, WEIGHT, RULES[rule], total, CLASSES)
        shares = np.array([list(each.shares.values()) for each in found])
        np.testing.assert_allclose(shares.sum(axis=0), 1.0)
        return {each.silo: each.in_noise or 0.0 for each in found}

    for rule in RULES:
        equal = influence(honest, rule)
        assert all(0.3 < value < 0.8 for value in equal.values()), equal  # 1 / √4 of the noise
    liar = ATTACKS["sums 1000 times too large"][0](honest[0])
    owned = influence([liar, *honest[1:]], "sum")
    assert owned[BAD] > 100 and owned[BAD] > 3 * max(value for silo, value in owned.items() if silo != BAD)
    assert influence([liar, *honest[1:]], "robust")[BAD] < 1.5


# Whole runs -----------------------------------------------------------------------------------------------------------


def card_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "card.json").read_text())
    return found


LIE = times(1000.0, "embedding")


def test_an_implausible_release_is_named_everywhere_and_used_unless_outliers_are_dropped(tmp_path: Path) -> None:
    run, grid = prepared(tmp_path, LIE)
    metrics = run.execute(grid)
    card = card_of(tmp_path / "run")
    assert {row["silo"] for row in card["silos"]} == {"north", "east", "south"}
    for facts in (metrics, card):
        (finding,) = facts["implausible_releases"]
        assert finding["silo"] == BAD and not finding["left_out"] and "embedding" in finding["found"][0]
        influence = {row["silo"]: row["in_noise"] for row in facts["influence"]}
        assert max(influence, key=lambda silo: influence[silo]) == BAD
    text = (tmp_path / "run" / "CARD.md").read_text()
    assert "no honest silo sends" in text and "used all the same" in text and "moved (noise = 1)" in text


def test_an_implausible_release_is_left_out_where_outliers_are_dropped(tmp_path: Path) -> None:
    run, grid = prepared(tmp_path, LIE, more='[aggregation]\noutliers = "drop"\n')
    metrics = run.execute(grid)
    card = card_of(tmp_path / "run")
    assert {row["silo"] for row in card["silos"]} == {"north", "south"}
    assert "implausible" in card["silos_without_release"][BAD]
    assert metrics["implausible_releases"][0]["left_out"] and card["outliers"] == "drop"
    assert {row["silo"] for row in card["influence"]} == {"north", "south"}
    assert server(["verify", str(tmp_path / "run")]) == 0


def test_the_quorum_counts_plausible_releases(tmp_path: Path) -> None:
    run, grid = prepared(tmp_path, LIE, quorum=3, more='[aggregation]\noutliers = "drop"\n')
    with pytest.raises(DpddError, match=r"2 of 3 releases are plausible, and the quorum is 3 \(east: sent what no"):
        run.execute(grid)
    assert not (tmp_path / "run" / "dataset").exists()


def test_a_run_by_robust_needs_three_silos_that_can_be_used(tmp_path: Path) -> None:
    run, grid = prepared(tmp_path, LIE, more='[aggregation]\noutliers = "drop"\nrule = "robust"\n')
    with pytest.raises(DpddError, match="at least 3, and there are 2"):
        run.execute(grid)


def test_a_set_that_contradicts_its_own_counts_is_left_out(tmp_path: Path) -> None:
    lie = with_arrays(lambda arrays: {**arrays, "counts": np.zeros_like(arrays["counts"])})
    run, grid = prepared(tmp_path, lie, mode="decentralised", more='[aggregation]\noutliers = "drop"\n')
    run.execute(grid)
    card = card_of(tmp_path / "run")
    assert "noise hides whether it has records" in card["silos_without_release"][BAD]
    assert all(sum(row["shares"].values()) > 0 for row in card["influence"])


@pytest.mark.parametrize("mode", ["centralised", "decentralised"])
def test_noise_alone_is_no_dataset(tmp_path: Path, mode: str) -> None:
    run, grid = prepared(tmp_path, lambda release: altered(release), mode=mode, records=3, epsilon=0.01)
    with pytest.raises(DpddError, match=r"every class is lost in noise: .* What helps: more silos") as failure:
        run.execute(grid)
    assert ("the noise in that is ±" in str(failure.value)) == (mode == "centralised")
    assert not (tmp_path / "run" / "dataset").exists() and not (tmp_path / "run" / "card.json").exists()
    assert (tmp_path / "run" / "store" / "index.sqlite").exists()
