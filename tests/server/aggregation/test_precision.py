"""Aggregation by precision: the least variance where silos look alike, and the noise that it states."""

from __future__ import annotations

import numpy as np
import pytest

from dpdd.common.errors import ConfigError
from dpdd.common.privacy.clipping import Layout, Segment, class_segment, global_segment
from dpdd.server.aggregation.precision import combine, precision_weights

GROUPS = Layout(
    (
        global_segment("all", 3, 2),
        class_segment("sums", 4, 2),
        Segment("groups", 2, 3, ((0, 1), (1, 2))),
        class_segment("count", 1, 2),
    )
)
WEIGHT = 0.1


def silo_sums(
    counts: tuple[int, int], noise: float, generator: np.random.Generator, layout: Layout = GROUPS
) -> dict[str, np.ndarray]:
    """Noisy sums over records that are all alike: every mean is 0.5."""
    sums = {}
    for segment in layout.segments:
        members = np.zeros(segment.rows)
        for label, rows in enumerate(segment.rows_of):
            members[list(rows)] += counts[label]
        value = WEIGHT if segment.name == "count" else 0.5
        clean = np.repeat(value * members[:, None], segment.width, axis=1)
        sums[segment.name] = clean + noise * generator.standard_normal(clean.shape)
    return sums


def plain(sums: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: sum(each[name] for each in sums) for name in sums[0]}  # type: ignore[misc]


@pytest.mark.parametrize("noise", [0.0, 2.0])
def test_precision_is_the_sum_for_equal_silos(noise: float) -> None:
    one = silo_sums((400, 300), noise, np.random.default_rng(1))
    total = combine([one] * 3, [noise] * 3, GROUPS, WEIGHT)
    for name, expected in plain([one] * 3).items():
        np.testing.assert_allclose(total.sums[name], expected, rtol=1e-12)
    assert total.noise == pytest.approx(noise * 3**0.5) and total.silos == 3


def test_precision_is_the_sum_without_noise_however_unequal_the_silos() -> None:
    generator = np.random.default_rng(1)
    sums = [silo_sums(counts, 0.0, generator) for counts in ((10, 900), (500, 0), (3, 4))]
    total = combine(sums, [0.0] * 3, GROUPS, WEIGHT)
    for name, expected in plain(sums).items():
        np.testing.assert_allclose(total.sums[name], expected, rtol=1e-9)


def errors_of_means(
    counts: list[tuple[int, int]], noise: list[float], trials: int = 400
) -> tuple[np.ndarray, np.ndarray]:
    """Root mean square error of the class means by `precision` and by `sum`."""
    wide = Layout((class_segment("sums", 200, 2), class_segment("count", 1, 2)))
    generator, squares = np.random.default_rng(7), np.zeros((2, 2))
    for _ in range(trials):
        sums = [silo_sums(n, sigma, generator, wide) for n, sigma in zip(counts, noise, strict=True)]
        for row, total in enumerate((combine(sums, noise, wide, WEIGHT).sums, plain(sums))):
            means = total["sums"] / (total["count"] / WEIGHT)
            squares[row] += np.square(means - 0.5).mean(axis=1) / trials
    return np.sqrt(squares[0]), np.sqrt(squares[1])


def test_precision_has_less_error_where_noise_is_unequal() -> None:
    precision, total = errors_of_means([(600, 600)] * 3, [1.0, 15.0, 15.0])
    assert (precision < 0.25 * total).all()
    _, alone = errors_of_means([(600, 600)], [1.0])
    assert (precision < 1.1 * alone).all()  # two loud silos do not spoil what the quiet one says
    sizes_too, total = errors_of_means([(2000, 50), (50, 2000), (1000, 1000)], [3.0, 3.0, 3.0])
    assert (sizes_too < total).all()


def test_the_stated_noise_is_in_every_class_row_and_means_are_sums_over_counts() -> None:
    generator, noise, counts = np.random.default_rng(3), [1.0, 4.0, 2.0], [(900, 2000), (5000, 800), (700, 700)]
    seen = {"sums": [], "all": []}  # type: dict[str, list[np.ndarray]]
    for _ in range(600):
        sums = [silo_sums(n, sigma, generator) for n, sigma in zip(counts, noise, strict=True)]
        for each in sums:  # a fixed count, so that only the noise in the sums is seen
            each["count"] = np.rint(each["count"] / WEIGHT / 1000 + 1) * 1000 * WEIGHT
        clean = [{**each, "sums": np.zeros((2, 4)), "all": np.zeros((1, 3))} for each in sums]
        with_noise = [
            {**each, **{name: sigma * generator.standard_normal(each[name].shape) for name in seen}}
            for each, sigma in zip(clean, noise, strict=True)
        ]
        total = combine(with_noise, noise, GROUPS, WEIGHT)
        for name in seen:
            seen[name].append(total.sums[name])
    stated = float(np.sqrt(np.square(noise).sum()))
    assert total.noise == pytest.approx(stated)
    assert np.std(seen["sums"]) == pytest.approx(stated, rel=0.03)
    assert stated * 0.97 < np.std(seen["all"]) < stated * 3**0.5
    alike = [silo_sums((800 * k, 600 * k), 0.0, generator) for k in (1, 2, 3)]
    total = combine(alike, noise, GROUPS, WEIGHT)
    effective = total.sums["count"][:, 0] / WEIGHT
    np.testing.assert_allclose(total.sums["sums"] / effective[:, None], 0.5)
    np.testing.assert_allclose(total.sums["all"] / effective.sum(), 0.5)
    np.testing.assert_allclose(total.sums["groups"][1] / effective.sum(), 0.5)
    np.testing.assert_allclose(total.sums["groups"][[0, 2]] / effective[:, None], 0.5)


def test_weights_prefer_quiet_and_large_silos_and_leave_lost_ones_out() -> None:
    def weights(counts: list[float], sigma: list[float]) -> np.ndarray:
        noise = np.array(sigma)
        return precision_weights(np.array(counts)[:, None], noise, noise[:, None] / WEIGHT, 1e-5)[:, 0]

    np.testing.assert_allclose(weights([500, 500], [2, 2]), 1.0)
    quiet, loud = weights([500, 500], [1, 2])
    assert quiet / loud == pytest.approx(4.0, rel=0.01)  # inverse variances
    large, small = weights([1000, 500], [2, 2])
    assert large / small == pytest.approx(2.0, rel=0.01)
    assert weights([500, 30], [2, 2])[1] == 0.0 and weights([500, -30], [2, 2])[1] == 0.0
    assert (weights([500, *[30] * 20], [2] * 21) > 0.0).all()  # together they are not lost
    np.testing.assert_allclose(weights([5, -5], [2, 2]), 1.0)  # nobody has it: the plain sum
    for weighed, sigma in ((weights([900, 400, 80], [1, 5, 2]), [1, 5, 2]), (weights([900, 30], [1, 2]), [1, 2])):
        assert np.square(weighed * sigma).sum() == pytest.approx(np.square(sigma).sum())


def test_a_layout_without_a_count_per_class_is_refused() -> None:
    with pytest.raises(ConfigError, match="one count per class"):
        combine([{"sums": np.zeros((2, 4))}], [1.0], Layout((class_segment("sums", 4, 2),)), WEIGHT)
