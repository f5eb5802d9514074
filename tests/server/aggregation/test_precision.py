"""Adding silos up, keeping what they sent, and refusing what does not belong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpdd.common.errors import ConfigError, IntegrityError
from dpdd.common.methods.dp_merf import synthesis as dp_merf
from dpdd.common.privacy.clipping import FIXED_POINT_ONE, Layout, Segment, class_segment, global_segment
from dpdd.common.wire.release import open_signed
from dpdd.server.aggregation.precision import add_up, aggregate, combine, noise_of, precision_weights
from dpdd.server.run.roster import Roster
from dpdd.server.run.store import Store
from tests.client.silos import make_request, make_silo

LAYOUT = dp_merf.layout(dp_merf.MethodSettings(features=16), 3)


def answers(tmp_path: Path, names: tuple[str, ...]) -> tuple[list[bytes], Roster]:
    silos = [make_silo(tmp_path / name, seed=number) for number, name in enumerate(names)]
    request = make_request().encode()
    return [silo.answer(request).data for silo in silos], Roster({s.settings.name: s.public_key for s in silos})  # type: ignore[union-attr]


def test_the_sum_is_exact_in_integers_and_noise_adds_in_squares(tmp_path: Path) -> None:
    data, _ = answers(tmp_path, ("north", "south", "west"))
    releases = [open_signed(each) for each in data]
    total = add_up(releases, LAYOUT)
    expected = sum(release.arrays["embedding"] for release in releases)
    np.testing.assert_array_equal(total.sums["embedding"] * FIXED_POINT_ONE, expected.astype(np.float64))
    assert total.noise == pytest.approx(noise_of(releases[0]) * 3**0.5)
    np.testing.assert_array_equal(add_up(releases[::-1], LAYOUT).sums["count"], total.sums["count"])


def test_arrays_of_another_shape_are_refused(tmp_path: Path) -> None:
    data, _ = answers(tmp_path, ("north",))
    with pytest.raises(IntegrityError, match="north"):
        add_up([open_signed(data[0])], dp_merf.layout(dp_merf.MethodSettings(features=17), 3))
    with pytest.raises(IntegrityError):
        add_up([], LAYOUT)


def test_the_store_keeps_what_was_sent_and_finds_it_again(tmp_path: Path) -> None:
    data, roster = answers(tmp_path, ("north", "south"))
    request = make_request()
    store = Store(tmp_path / "store")
    for each in data:
        store.add(each, request.id, roster)
        store.add(each, request.id, roster)
    store.close()
    again = Store(tmp_path / "store")
    assert [release.silo for release in again.releases(request.id, roster)] == ["north", "south"]
    digest = again.digests(request.id)["north"]
    assert again.read(digest) == data[0]
    (tmp_path / "store" / digest).write_bytes(data[0][:-1] + b"!")
    with pytest.raises(IntegrityError, match="not what its name says"):
        again.releases(request.id, roster)


def test_strangers_wrong_requests_and_second_releases_are_refused(tmp_path: Path) -> None:
    (north,), roster = answers(tmp_path / "a", ("north",))
    (second,), _ = answers(tmp_path / "b", ("north",))
    request = make_request()
    store = Store(tmp_path / "store")
    with pytest.raises(IntegrityError, match="not enrolled"):
        store.add(north, request.id, Roster({"south": bytes(32)}))
    with pytest.raises(IntegrityError, match="another key"):
        store.add(second, request.id, roster)
    with pytest.raises(IntegrityError, match="another request"):
        store.add(north, "00" * 32, roster)
    store.add(north, request.id, roster)
    impostor = Roster({"north": open_key(second)})
    with pytest.raises(IntegrityError, match="second, different"):
        store.add(second, request.id, impostor)


def open_key(data: bytes) -> bytes:
    from dpdd.common.wire.release import signer_of

    return signer_of(data)


GROUPS = Layout(
    (
        global_segment("everybody", 3, 2),
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
    found = combine([one] * 3, [noise] * 3, GROUPS, WEIGHT)
    for name, expected in plain([one] * 3).items():
        np.testing.assert_allclose(found.sums[name], expected, rtol=1e-12)
    assert found.noise == pytest.approx(noise * 3**0.5) and found.silos == 3


def test_precision_is_the_sum_without_noise_however_unequal_the_silos() -> None:
    generator = np.random.default_rng(1)
    sums = [silo_sums(counts, 0.0, generator) for counts in ((10, 900), (500, 0), (3, 4))]
    found = combine(sums, [0.0] * 3, GROUPS, WEIGHT)
    for name, expected in plain(sums).items():
        np.testing.assert_allclose(found.sums[name], expected, rtol=1e-9)


def errors_of_means(
    counts: list[tuple[int, int]], noise: list[float], trials: int = 400
) -> tuple[np.ndarray, np.ndarray]:
    """Root mean square error of the class means by `precision` and by `sum`."""
    wide = Layout((class_segment("sums", 200, 2), class_segment("count", 1, 2)))
    generator, squares = np.random.default_rng(7), np.zeros((2, 2))
    for _ in range(trials):
        sums = [silo_sums(n, sigma, generator, wide) for n, sigma in zip(counts, noise, strict=True)]
        for row, found in enumerate((combine(sums, noise, wide, WEIGHT).sums, plain(sums))):
            means = found["sums"] / (found["count"] / WEIGHT)
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
    seen = {"sums": [], "everybody": []}  # type: dict[str, list[np.ndarray]]
    for _ in range(600):
        sums = [silo_sums(n, sigma, generator) for n, sigma in zip(counts, noise, strict=True)]
        for each in sums:  # a fixed count, so that only the noise in the sums is seen
            each["count"] = np.rint(each["count"] / WEIGHT / 1000 + 1) * 1000 * WEIGHT
        clean = [{**each, "sums": np.zeros((2, 4)), "everybody": np.zeros((1, 3))} for each in sums]
        with_noise = [
            {**each, **{name: sigma * generator.standard_normal(each[name].shape) for name in seen}}
            for each, sigma in zip(clean, noise, strict=True)
        ]
        found = combine(with_noise, noise, GROUPS, WEIGHT)
        for name in seen:
            seen[name].append(found.sums[name])
    stated = float(np.sqrt(np.square(noise).sum()))
    assert found.noise == pytest.approx(stated)
    assert np.std(seen["sums"]) == pytest.approx(stated, rel=0.03)
    assert stated * 0.97 < np.std(seen["everybody"]) < stated * 3**0.5
    alike = [silo_sums((800 * k, 600 * k), 0.0, generator) for k in (1, 2, 3)]
    found = combine(alike, noise, GROUPS, WEIGHT)
    effective = found.sums["count"][:, 0] / WEIGHT
    np.testing.assert_allclose(found.sums["sums"] / effective[:, None], 0.5)
    np.testing.assert_allclose(found.sums["everybody"] / effective.sum(), 0.5)
    np.testing.assert_allclose(found.sums["groups"][1] / effective.sum(), 0.5)
    np.testing.assert_allclose(found.sums["groups"][[0, 2]] / effective[:, None], 0.5)


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
    for found, sigma in ((weights([900, 400, 80], [1, 5, 2]), [1, 5, 2]), (weights([900, 30], [1, 2]), [1, 2])):
        assert np.square(found * sigma).sum() == pytest.approx(np.square(sigma).sum())


def test_releases_with_different_epsilon_add_up_and_are_weighed(tmp_path: Path) -> None:
    silos = [make_silo(tmp_path / name, records=3000, epsilon=2.0) for name in ("north", "south")]
    requests = [make_request(epsilon=epsilon) for epsilon in (0.2, 2.0)]
    releases = [
        open_signed(silo.answer(request.encode()).data)  # type: ignore[union-attr]
        for silo, request in zip(silos, requests, strict=True)
    ]
    noise = [noise_of(release) for release in releases]
    assert noise[0] > 5 * noise[1]
    weight = dp_merf.MethodSettings(features=16).count_weight
    for rule in ("sum", "precision"):
        found = aggregate(releases, LAYOUT, rule, weight)  # type: ignore[arg-type]
        assert found.noise == pytest.approx(float(np.hypot(*noise)))
    added, weighed = (aggregate(releases, LAYOUT, rule, weight).sums for rule in ("sum", "precision"))  # type: ignore[arg-type]
    np.testing.assert_array_equal(added["embedding"], add_up(releases, LAYOUT).sums["embedding"])
    assert not np.allclose(added["embedding"], weighed["embedding"])
    with pytest.raises(ConfigError, match="no class counts"):
        aggregate(releases, LAYOUT, "precision", None)
    np.testing.assert_array_equal(aggregate(releases, LAYOUT, "sum", None).sums["count"], added["count"])
    with pytest.raises(ConfigError, match="one count per class"):
        combine([{"sums": np.zeros((2, 4))}], [1.0], Layout((class_segment("sums", 4, 2),)), WEIGHT)
