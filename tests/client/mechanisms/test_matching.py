"""Matching's private half by brute force: who is in a draw, what one record moves, what silos add up to, what it costs.

Sampling is fixed where two runs are compared: then a record moves exactly the draws it is sampled for, by at most one
unit, and nothing else, to the last bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from dpdd.client.mechanisms import matching as mechanism
from dpdd.client.mechanisms.base import stacked
from dpdd.client.mechanisms.matching import MECHANISM
from dpdd.client.records.records import Records
from dpdd.client.silo import Silo
from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.matching import planning, synthesis
from dpdd.common.methods.matching.settings import MethodSettings
from dpdd.common.methods.matching.signals import MOST_FEATURES, Signals, clipped
from dpdd.common.methods.matching.specification import auxiliary, signal_settings, signals, stage_input_shapes
from dpdd.common.methods.matching.stages import count_weight, generator_of, layout, resolve, stages
from dpdd.common.methods.plan import Plan
from dpdd.common.methods.private_evolution.specification import population_shape
from dpdd.common.methods.registry import METHODS, query
from dpdd.common.models.random_net import feature_count
from dpdd.common.privacy import sampling
from dpdd.common.privacy.accounting import gaussian_delta, guarantee, largest_mu, rdp_guarantee
from dpdd.common.privacy.clipping import FIXED_POINT_ONE, Layout
from dpdd.common.privacy.entropy import SeededEntropy, SystemEntropy
from dpdd.common.privacy.events import Event, Gaussian, NonPrivate, PoissonGaussian, compose, from_json, parts
from dpdd.common.privacy.sampling import sampled_event
from dpdd.common.synthesis.statistics import of_one_silo
from dpdd.common.wire.answer import Reason, Refusal, SignedReleaseBytes
from dpdd.common.wire.parsing import MOST_BYTES
from dpdd.common.wire.release import Release, open_signed
from dpdd.common.wire.request import Kind, ReleaseRequest
from dpdd.server.aggregation.rules import aggregate
from dpdd.server.run.requests import request_groups
from dpdd.server.run.scenario import Scenario, load_scenario
from tests.client.silos import CLASSES, SHAPE, make_request, make_silo
from tests.server.releases import as_asked

SMALL: dict[str, Any] = {
    "draws": 13,
    "networks": 3,
    "rate": 0.5,
    "width": 4,
    "depth": 2,
    "dimensions": 0,
    "auxiliary_images": 20,
    "flips": True,
    "encoding": "exact",
}
KINDS: dict[str, dict[str, Any]] = {
    "features": {},
    "subspace": {"dimensions": 6},
    "two moments": {"dimensions": 6, "moments": 2, "whitening": 0.7},
    "gradients": {"signal": "gradients"},
}
kinds = pytest.mark.parametrize("kind", KINDS)
SEED = 3
RUN = RunDescription(CLASSES, SHAPE, SEED)


def values(**changes: Any) -> MethodSettings:
    return MethodSettings(**{**SMALL, **changes})


def asked(chosen: MethodSettings, **changes: Any) -> ReleaseRequest:
    found = {"method": "dosser", "settings": chosen.model_dump(mode="json"), "public_seed": SEED, "epsilon": math.inf}
    return make_request(**{**found, **changes})


def signals_of(chosen: MethodSettings) -> Signals:
    return signals(chosen, auxiliary(chosen, {}, RUN), RUN)


def hostile(seed: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Twelve records, most of them not ordinary."""
    generator = np.random.Generator(np.random.PCG64(seed))
    images = generator.random((12, *SHAPE)).astype(np.float32)
    images[0] = 0.0
    images[1] = 1.0
    images[2] *= np.float32(1e20)
    images[3] *= np.float32(-1e6)
    images[4, 0, 3, 4] = np.nan
    images[5, 0, 7, 0] = np.inf
    images[6] = np.float32(3e38)
    images[7] *= np.float32(1e-30)
    images[8] = np.indices(SHAPE[1:]).sum(0) % 2
    return images, generator.integers(0, len(CLASSES), 12)


Sums = Mapping[str, np.ndarray]


class Draws:
    """The clean sums of each draw, over some of the records, with given samples."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        samples: np.ndarray,
        batch: int | None = None,
        shape: tuple[int, ...] = SHAPE,
    ) -> None:
        self._samples, self._shape, self._found = samples, shape, []
        self._kept, self._drawn = np.zeros(0, np.int64), 0
        monkeypatch.setattr(sampling, "poisson_sample", self._sample)
        numbered = mechanism.numbered
        monkeypatch.setattr(mechanism, "numbered", lambda piece, n: (self._found.append(piece), numbered(piece, n))[1])
        if batch is not None:
            monkeypatch.setattr(mechanism, "BATCH", batch)

    def _sample(self, records: int, _rate: float, _entropy: object) -> np.ndarray:
        assert records == len(self._kept)
        self._drawn += 1
        return np.flatnonzero(self._samples[self._drawn - 1, self._kept])

    def __call__(
        self, chosen: MethodSettings, images: np.ndarray, labels: np.ndarray, kept: Sequence[int] | np.ndarray
    ) -> list[Sums]:
        self._kept, self._drawn, self._found = np.asarray(kept, np.int64), 0, []
        records, request = Records(images[self._kept], labels[self._kept]), asked(chosen, shape=self._shape)
        plan = query("dosser").plan(request, chosen)
        released = MECHANISM.run(records, request, chosen, plan, SeededEntropy(0), lambda *_: None)
        assert self._drawn == len(self._found) == chosen.draws and released.event == NonPrivate()
        return [piece.arrays for piece in self._found]


def samples(draws: int, records: int, seed: int = 1) -> np.ndarray:
    """Who is in which draw; nobody is in the first, and everybody in the second."""
    drawn = np.random.Generator(np.random.PCG64(seed)).random((draws, records)) < 0.5
    drawn[0], drawn[1] = False, True
    return drawn


def square(sums: Sums) -> int:
    return sum(int((array.astype(object) ** 2).sum()) for array in sums.values())


def minus(one: Sums, other: Sums) -> Sums:
    return {name: one[name] - other[name] for name in one}


def same(one: Sums, other: Sums) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one)


# Sensitivity ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind, batch", [("features", 64), ("features", 4), ("subspace", 5), ("gradients", 5)])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_record_moves_its_own_draws_by_at_most_one_unit_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, kind: str, batch: int
) -> None:
    """Small batches put records elsewhere when one before them is gone, and leave some alone in the last."""
    chosen, (images, labels) = values(**KINDS[kind]), hostile()
    drawn = samples(chosen.draws, 12)
    run = Draws(monkeypatch, drawn, batch)
    whole = run(chosen, images, labels, range(12))
    assert not any(array.any() for array in whole[0].values()), "an empty sample"
    weights = []
    for index in range(12) if kind != "gradients" else (0, 3, 5, 8, 9, 10, 11):  # which take longer
        less = run(chosen, images, labels, [other for other in range(12) if other != index])
        alone = run(chosen, images, labels, [index])
        for number, (all_of_it, without, own) in enumerate(zip(whole, less, alone, strict=True)):
            moved = minus(all_of_it, without)
            assert same(moved, own), f"draw {number} without record {index}"
            assert square(moved) <= FIXED_POINT_ONE**2
            if not drawn[number, index]:
                assert not any(array.any() for array in moved.values())
            else:
                weights.append(math.sqrt(square(moved)) / FIXED_POINT_ONE)
    assert sum(weight > 0.3 for weight in weights) > len(weights) / 2, "most records do contribute"
    assert max(weights) > 0.99, "and some use their whole unit"


@kinds
def test_a_view_of_every_kind_was_among_these_draws(kind: str) -> None:
    chosen = values(**KINDS[kind])
    every = signals_of(chosen)
    seen = [every.draw(number).augmentation.kind for number in range(chosen.draws)]
    assert {(True, False, False), (False, True, False), (False, False, True)} <= set(seen) and len(set(seen)) >= 4


@kinds
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_records_with_nan_or_infinity_contribute_exactly_nothing(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    chosen, (images, labels) = values(**KINDS[kind]), hostile()
    run = Draws(monkeypatch, np.ones((chosen.draws, 12), bool))
    for index in (4, 5):
        assert all(not array.any() for sums in run(chosen, images, labels, [index]) for array in sums.values())


def test_where_the_place_in_a_batch_matters_records_come_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network with a bad habit: what it says of an image depends on where that image lies."""
    honest = mechanism.Draw.of_records

    def habit(self: Any, images: Any, labels: Any) -> np.ndarray:
        found = honest(self, images, labels)
        return found * (1.0 + 1e-6 * np.arange(len(found), dtype=np.float32)[:, None])

    monkeypatch.setattr(mechanism.Draw, "of_records", habit)
    chosen, (images, labels) = values(draws=3), hostile()
    images = np.abs(images[8:])
    run = Draws(monkeypatch, np.ones((3, 4), bool))
    whole, less, alone = (run(chosen, images, labels[8:], kept) for kept in (range(4), [1, 2, 3], [0]))
    for number in range(3):
        assert same(minus(whole[number], less[number]), alone[number])


def test_every_kind_of_view_is_tried_for_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """One kind alone has the habit, and it is not the first: only its records come one by one."""
    honest, tried = mechanism.independent_of_batch_position, []
    monkeypatch.setattr(
        mechanism, "independent_of_batch_position", lambda *arguments: (tried.append(1), honest(*arguments))[1]
    )
    chosen, (images, labels) = values(), hostile()
    Draws(monkeypatch, samples(13, 12))(chosen, images, labels, range(8, 12))
    every = signals_of(chosen)
    assert len(tried) == len({every.draw(number).augmentation.kind for number in range(13)}) > 3


@kinds
def test_counts_are_those_of_the_sample(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    chosen, (images, labels) = values(**KINDS[kind], count_share=0.3), hostile()
    images, labels = images[7:], labels[7:]
    drawn = samples(chosen.draws, 5)
    found = Draws(monkeypatch, drawn)(chosen, images, labels, range(5))
    for sums, mask in zip(found, drawn, strict=True):
        expected = np.bincount(labels[mask], minlength=3)
        np.testing.assert_allclose(sums["count"][:, 0] / FIXED_POINT_ONE / 0.3, expected, atol=1e-4)


# Many silos -----------------------------------------------------------------------------------------------------------


@kinds
def test_any_split_over_silos_adds_up_to_the_last_bit(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    chosen, generator = values(**KINDS[kind], draws=5), np.random.Generator(np.random.PCG64(6))
    images, labels = generator.random((150, *SHAPE)).astype(np.float32), generator.integers(0, 3, 150)
    run = Draws(monkeypatch, samples(5, 150))
    whole = run(chosen, images, labels, range(150))
    pieces = np.split(generator.permutation(150), [1, 7, 70, 71])
    found = [run(chosen, images, labels, piece) for piece in pieces]
    for number, sums in enumerate(whole):
        for name, array in sums.items():
            np.testing.assert_array_equal(sum(part[number][name] for part in found), array)
    assert square(whole[1]) > 0


@pytest.mark.parametrize("kind", ["features", "subspace"])
def test_networks_of_a_usual_size_add_up_to_the_last_bit_too(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """The sizes at which convolutions and products take other roads than at small ones."""
    shape, generator = (1, 28, 28), np.random.Generator(np.random.PCG64(7))
    images, labels = generator.random((130, *shape)).astype(np.float32), generator.integers(0, 3, 130)
    chosen = values(draws=3, networks=1, width=64, depth=3, auxiliary_images=60, dimensions=40 * (kind == "subspace"))
    run = Draws(monkeypatch, np.ones((3, 130), bool), shape=shape)
    whole = run(chosen, images, labels, range(130))
    found = [run(chosen, images, labels, piece) for piece in np.split(generator.permutation(130), [1, 66])]
    for number, sums in enumerate(whole):
        for name, array in sums.items():
            np.testing.assert_array_equal(sum(part[number][name] for part in found), array)


def matching_silo(folder: Path, methods: str = '"dosser", "ndpdc", "psg", "dm"', **options: Any) -> Silo:
    make_silo(folder, **options)
    text = (folder / "silo.toml").read_text()
    (folder / "silo.toml").write_text(text.replace('methods = ["dp-merf"]', f"methods = [{methods}]"))
    return Silo(folder)


def released(silo: Silo, request: ReleaseRequest) -> Release:
    answer = silo.answer(request.encode())
    assert isinstance(answer, SignedReleaseBytes), answer
    return open_signed(answer.data, silo.public_key)


def five_silos(folder: Path, chosen: MethodSettings, method: str) -> tuple[Release, list[Release], Layout, np.ndarray]:
    """One silo's release of all records, and those of five silos with a fifth each; without noise."""
    generator = np.random.Generator(np.random.PCG64(8))
    images, labels = generator.integers(0, 256, (100, *SHAPE), dtype=np.uint8), generator.integers(0, 3, 100)
    unprotected = "[simulation]\nallow_no_noise = true\n"
    request = asked(chosen, method=method)
    order = np.split(generator.permutation(100), 5)
    found = [
        as_asked(
            released(matching_silo(folder / f"s{n}", images=images[p], labels=labels[p], extra=unprotected), request),
            request,
        )
        for n, p in enumerate([np.arange(100), *order])
    ]
    assert not found[0].releasable
    return found[0], found[1:], layout(chosen, RUN, 0), np.bincount(labels, minlength=3)


@pytest.mark.parametrize(
    "method, kind, draws", [("dosser", "subspace", 4), ("dosser", "subspace", 5), ("psg", "gradients", 4)]
)
def test_five_silos_with_a_fifth_each_release_what_one_with_everything_does(
    tmp_path: Path, method: str, kind: str, draws: int
) -> None:
    chosen = values(**KINDS[kind], draws=draws, rate=1.0)
    one, five, sums, counts = five_silos(tmp_path, chosen, method)
    weight = count_weight(chosen, 0)
    alone, together = (aggregate(releases, sums, "sum", weight) for releases in ([one], five))
    np.testing.assert_array_equal(together.sums["signal"], alone.sums["signal"])
    # Counts are divided by √draws and rounded, once by each silo: exact where the root is whole.
    rounding = 0.0 if draws == 4 else 0.5 * (5 + 1) / FIXED_POINT_ONE
    np.testing.assert_allclose(together.sums["count"], alone.sums["count"], atol=rounding, rtol=0.0)
    np.testing.assert_allclose(alone.sums["count"][:, 0] / weight, counts, rtol=1e-4)
    weighed = aggregate(five, sums, "precision", weight)
    np.testing.assert_allclose(weighed.sums["signal"], alone.sums["signal"], atol=1e-6)


def test_sixteen_bits_cost_five_silos_at_most_half_a_step_each(tmp_path: Path) -> None:
    long, short = values(dimensions=6, draws=4, rate=1.0), values(dimensions=6, draws=4, rate=1.0, encoding="short")
    exact, five_exact, sums, _ = five_silos(tmp_path / "long", long, "dosser")
    one, five, _, _ = five_silos(tmp_path / "short", short, "dosser")
    steps = [int(release.arrays["signal-step"][0, 0]) for release in five]
    found, expected = (aggregate(r, sums, "sum", 1.0).sums for r in (five, [exact]))
    assert np.abs(found["signal"] - expected["signal"]).max() * FIXED_POINT_ONE <= sum(steps) / 2
    np.testing.assert_array_equal(found["count"], expected["count"])
    assert one.arrays["signal"].dtype == np.int16 and max(steps) < 2 * FIXED_POINT_ONE * 100 / 2**15
    assert {release.arrays["signal"].dtype for release in five_exact} == {np.dtype(np.int64)}


@kinds
@pytest.mark.parametrize("encoding", ["exact", "short"])
def test_a_release_without_noise_gives_the_true_mean_signals(kind: str, encoding: str) -> None:
    """From records to targets: every draw and class in its place, every weight undone."""
    generator = np.random.Generator(np.random.PCG64(5))
    images, labels = generator.random((40, *SHAPE)).astype(np.float32), np.arange(40) % 2
    chosen = values(**KINDS[kind], rate=1.0, draws=5, encoding=encoding, count_share=0.4)
    request = asked(chosen)
    plan = query("dosser").plan(request, chosen)
    found = MECHANISM.run(Records(images, labels), request, chosen, plan, SeededEntropy(0), lambda *_: None)
    wanted, known = synthesis.targets(of_one_silo(found.arrays, found.event), chosen, 3)
    assert known.tolist() == [True, True, False]
    every = signals_of(chosen)
    for number in range(5):
        drawn = torch.from_numpy(every.draw(number).of_records(torch.from_numpy(images), torch.from_numpy(labels)))
        for label in range(2):
            mean = clipped(drawn)[labels == label].mean(dim=0)
            torch.testing.assert_close(wanted[number, label], mean, atol=1e-4, rtol=0.0)


# Accounting -----------------------------------------------------------------------------------------------------------


def losses(event: Gaussian | PoissonGaussian, direction: int, grid: float, size: int, up: bool) -> np.ndarray:
    """One step's privacy losses on a grid (rounded up or down), as probabilities; made from the definition.

    `direction` 1 removes the record: (1-q)·N(0, σ²) + q·N(1, σ²) against N(0, σ²); -1 adds it, the other way round.
    """
    rate = event.rate if isinstance(event, PoissonGaussian) else 1.0
    edges = grid * (np.arange(size + 1) - size // 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        shifted = (np.exp(direction * edges) - (1.0 - rate)) / rate  # the density ratio is 1 - q + q·exp((2x-1)/2σ²)
        places = np.where(shifted > 0.0, event.sigma**2 * np.log(np.maximum(shifted, 1e-300)) + 0.5, -np.inf)
    below = norm.cdf(places / event.sigma)
    if direction > 0:
        below = (1.0 - rate) * below + rate * norm.cdf((places - 1.0) / event.sigma)
    else:
        below = 1.0 - below  # the loss falls where x grows
    found = np.zeros(size)
    found[1 if up else 0 :] = np.diff(below)[: size - 1 if up else size]
    found[-1] += max(1.0 - below[-1], 0.0)
    found[0] += below[0]
    return found


def delta_of(event: Event, epsilon: float, up: bool, grid: float = 2e-4, size: int = 1 << 17) -> float:
    """δ by convolving privacy losses, with nothing of our accountant in it: from above or from below."""
    worst = 0.0
    for direction in (1, -1):
        spectrum = np.ones(size // 2 + 1, complex)
        for part in parts(event):
            assert isinstance(part, Gaussian | PoissonGaussian)
            steps = part.releases if isinstance(part, Gaussian) else part.steps
            one = np.roll(losses(part, direction, grid, size, up), -(size // 2))
            spectrum *= np.fft.rfft(one) ** steps
        total = np.roll(np.fft.irfft(spectrum, size), size // 2)
        loss = grid * (np.arange(size) - size // 2)
        worst = max(worst, float((total * np.maximum(-np.expm1(epsilon - loss), 0.0)).sum()))
    return worst


def test_the_tests_own_accountant_knows_the_gaussian() -> None:
    for sigma, releases in ((3.7306, 1), (7.0, 3)):
        exact = gaussian_delta(math.sqrt(releases) / sigma, 1.0)
        event = Gaussian(sigma, releases)
        assert delta_of(event, 1.0, up=False) <= exact <= delta_of(event, 1.0, up=True)
        assert delta_of(event, 1.0, up=True) == pytest.approx(exact, rel=0.01)


CHEAP: dict[str, Any] = {"rate": 0.5, "draws": 4}
PLANS: dict[str, dict[str, Any]] = {
    "sampled": CHEAP,
    "two stages": CHEAP | {"auxiliary": "generated"},
    "everybody": {"rate": 1.0, "draws": 4},
    "everybody, two stages": {"rate": 1.0, "draws": 4, "auxiliary": "generated", "auxiliary_share": 0.5},
}


def stage_input_of(chosen: MethodSettings) -> dict[str, np.ndarray]:
    shapes = stage_input_shapes(chosen, RUN)
    generator = np.random.Generator(np.random.PCG64(9))
    images = generator.integers(0, 256, shapes["images"], dtype=np.uint8)
    return {"images": images, "labels": np.arange(len(images)) % 3}


def plans_of(chosen: MethodSettings, **changes: Any) -> list[Plan]:
    """The plan of every stage."""
    first = asked(chosen, **{"epsilon": 1.0} | changes)
    later = [replace(first, stage=1, stage_input=stage_input_of(chosen))] if stages(chosen) == 2 else []
    return [query("dosser").plan(request, chosen) for request in (first, *later)]


@pytest.mark.parametrize("name", PLANS)
def test_all_draws_and_stages_together_have_the_promised_guarantee(name: str) -> None:
    chosen = values(**PLANS[name])
    plans = plans_of(chosen)
    whole = compose(*(plan.event for plan in plans))
    slack = (1.0 + math.e) * math.fsum(plan.distance for plan in plans)
    assert 0.0 < slack < 1e-12
    for plan in plans:
        assert (plan.guarantee.epsilon, plan.guarantee.delta) == (1.0, 1e-5)
        assert plan.whole is None if len(plans) == 1 else plan.whole == whole
        if plan.whole_distance is not None:
            assert plan.whole_distance == pytest.approx(math.fsum(each.distance for each in plans), rel=1e-12)
    assert plans[-1].event == sampled_event(parts(plans[-1].event)[0].sigma, chosen.rate, 4)  # type: ignore[union-attr]
    if chosen.rate == 1.0:
        mu = math.sqrt(sum(part.releases / part.sigma**2 for part in parts(whole)))  # type: ignore[union-attr]
        assert 0.999e-5 < gaussian_delta(mu, 1.0) + slack <= 1e-5
    else:
        assert delta_of(whole, 1.0, up=False) + slack <= 1e-5, "a lower bound above would prove us wrong"
        assert delta_of(whole, 1.0, up=True) <= 1.05e-5 and delta_of(whole, 1.0, up=False) > 0.9e-5
        assert 1.0 < rdp_guarantee(whole, 1e-5).epsilon < 1.3


def test_the_auxiliary_share_is_about_what_the_first_stage_takes() -> None:
    chosen = values(rate=1.0, draws=50, auxiliary="generated", auxiliary_share=0.3)
    first, second = plans_of(chosen)
    weights = [sum(p.releases / p.sigma**2 for p in parts(plan.event)) for plan in (first, second)]  # type: ignore[union-attr]
    assert weights[0] / sum(weights) == pytest.approx(0.3, rel=1e-9)


def test_rounds_of_votes_share_what_auxiliary_images_may_cost_and_all_stages_compose() -> None:
    votes = {"rounds": 2, "population": 4, "features": 0}
    two = {"auxiliary": "generated", "generator": "private-evolution", "generator_settings": votes}
    chosen = resolve(values(rate=1.0, draws=50, **two), RUN, 1.0, 1e-5)
    first, generator = asked(chosen, epsilon=1.0), generator_of(chosen)
    members = np.zeros(population_shape(generator.settings, RUN), np.uint8)  # type: ignore[arg-type]
    inputs: list[dict[str, np.ndarray]] = [{}, {"population": members}, stage_input_of(chosen)]
    plans = [
        query("dosser").plan(replace(first, stage=stage, stage_input=given), chosen)
        for stage, given in enumerate(inputs)
    ]
    whole = compose(*(plan.event for plan in plans))
    assert plans[0].whole == plans[1].whole == plans[2].whole == whole and plans[0].event == plans[1].event
    weights = [sum(p.releases / p.sigma**2 for p in parts(plan.event)) for plan in plans]  # type: ignore[union-attr]
    assert (weights[0] + weights[1]) / sum(weights) == pytest.approx(chosen.auxiliary_share, rel=1e-9)
    slack = (1.0 + math.e) * math.fsum(plan.distance for plan in plans)
    assert 0.999e-5 < gaussian_delta(math.sqrt(sum(weights)), 1.0) + slack <= 1e-5
    for stage in (0, 1, 2):
        with pytest.raises(ConfigError, match=r"population|auxiliary arrays"):
            query("dosser").plan(replace(first, stage=stage, stage_input=inputs[(stage + 1) % 3]), chosen)


def test_samples_so_rare_that_delta_covers_them_still_get_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that is sampled with probability below δ could be published in the clear, by the letter of (ε, δ)."""
    assert planning.LEAST_NOISE >= 0.25
    monkeypatch.setattr(planning, "LEAST_NOISE", 1.0)  # accounting for less noise takes longer
    rare = values(rate=1e-9, draws=1)
    plan = query("dosser").plan(asked(rare, epsilon=1.0), rare)
    assert plan.event == PoissonGaussian(1.0, 1e-9, 1) and plan.distance > 0.0


def schedules() -> Iterator[tuple[str, float, int, float]]:
    """(name, rate, draws, ε) of every preset, and of every scenario of the family that asks for privacy."""
    for entry in METHODS.values():
        if entry.family == "matching" and entry.name != "dm":
            chosen: Any = entry.settings({})
            yield entry.name, chosen.rate, chosen.draws, 1.0
    for path in sorted(Path(__file__).parents[3].joinpath("scenarios", "files").glob("*.toml")):
        scenario = load_scenario(str(path))
        entry = METHODS[scenario.method.name]
        if entry.family == "matching" and math.isfinite(scenario.privacy.epsilon):
            chosen = entry.settings(scenario.method.settings)
            yield path.stem, chosen.rate, chosen.draws, scenario.privacy.epsilon


SCHEDULES = {(rate, draws, epsilon): name for name, rate, draws, epsilon in schedules()}


@pytest.mark.parametrize("rate, draws, epsilon", SCHEDULES, ids=SCHEDULES.values())
def test_renyi_is_never_below_the_loss_distribution(rate: float, draws: int, epsilon: float) -> None:
    sigma = max(rate * math.sqrt(draws) / largest_mu(epsilon, 1e-5), 0.7)  # about what it will be
    event = sampled_event(sigma, rate, draws)
    renyi, tighter = rdp_guarantee(event, 1e-5).epsilon, guarantee(event, 1e-5).epsilon
    assert 0.7 * renyi < tighter <= renyi < 2.0 * epsilon


@pytest.mark.parametrize("name", ["sampled", "everybody"])
def test_one_entry_of_the_ledger_holds_the_event_of_all_draws(tmp_path: Path, name: str) -> None:
    chosen = values(**PLANS[name])
    silo = matching_silo(tmp_path / "north")
    request = asked(chosen, epsilon=1.0)
    release = released(silo, request)
    planned = query("dosser").plan(request, chosen)
    (reserved,) = [entry for entry in silo.ledger().entries() if entry.kind == "reserve"]
    assert release.event == planned.event == from_json(reserved.body["event"])
    assert release.ledger_entry == reserved.hash and release.releasable
    assert release.distance == planned.distance == reserved.body["distance"]
    assert (release.guarantee.epsilon, release.guarantee.delta) == (1.0, 1e-5)
    assert [entry.kind for entry in silo.ledger().entries()] == ["open", "reserve", "commit"]
    assert reserved.body["coordinates"] == planned.coordinates == 4 * 3 * (16 + 1)
    sent = sum(array.nbytes for array in release.arrays.values())
    assert planned.bytes == sent
    assert silo.answer(request.encode()) == silo.answer(request.encode())


@pytest.mark.parametrize("name", ["two stages", "everybody, two stages"])
def test_two_stages_are_reserved_together(tmp_path: Path, name: str) -> None:
    chosen = values(**PLANS[name], encoding="short")
    silo = matching_silo(tmp_path / "north")
    first = asked(chosen, epsilon=1.0)
    plans = plans_of(chosen)
    one = released(silo, first)
    (reserved,) = [entry for entry in silo.ledger().entries() if entry.kind == "reserve"]
    assert from_json(reserved.body["event"]) == plans[0].whole == plans[1].whole
    assert reserved.body["stages"] == 2 and one.event == plans[0].event and isinstance(one.event, Gaussian)
    second = replace(first, stage=1, stage_input=stage_input_of(chosen))
    two = as_asked(released(silo, second), second)
    assert two.event == plans[1].event and compose(one.event, two.event) == plans[0].whole
    assert [entry.kind for entry in silo.ledger().entries()] == ["open", "reserve", "commit", "stage", "commit"]
    other = stage_input_of(chosen)
    other["images"] = 255 - other["images"]
    refusal = silo.answer(replace(first, stage=1, stage_input=other).encode())
    assert isinstance(refusal, Refusal) and "another input" in refusal.message
    assert two.arrays["signal"].dtype == np.int16
    aggregate([two], layout(chosen, RUN, 1), "sum", count_weight(chosen, 1))


def test_a_distilled_set_has_the_event_of_both_stages(tmp_path: Path) -> None:
    chosen = values(**PLANS["everybody, two stages"], generator_synthesis={"steps": 2, "hidden": 8, "batch": 10})
    silo = matching_silo(tmp_path / "north", records=900)
    asked_for = {"method": chosen.model_dump(mode="json"), "synthesis": {"steps": 2}, "images_per_class": 2}
    release = released(silo, asked(chosen, epsilon=1.0, kind=Kind.DISTILLED_SET, settings=asked_for))
    assert set(release.arrays) == {"images", "labels", "counts"} and release.event == plans_of(chosen)[0].whole
    assert [entry.kind for entry in silo.ledger().entries()] == ["open", "reserve", "commit"]


def test_noise_is_in_every_draw_and_has_the_stated_width() -> None:
    chosen = values(rate=0.3, draws=40, networks=1)
    request, sigma = asked(chosen, epsilon=1.0), 5.0
    plan = replace(query("dosser").plan(asked(chosen), chosen), event=PoissonGaussian(sigma, 0.3, 40))
    nobody = Records(np.zeros((0, *SHAPE), np.uint8), np.zeros(0, np.int64))
    found = MECHANISM.run(nobody, request, chosen, plan, SystemEntropy(), lambda *_: None)
    assert found.event == PoissonGaussian(sigma, 0.3, 40)
    noise = found.arrays["signal"].reshape(40, -1) / FIXED_POINT_ONE / sigma
    assert noise.shape == (40, 3 * 16) and abs(noise.std() - 1.0) < 5.0 / math.sqrt(2 * noise.size)
    assert not np.isclose(noise[:, None], noise[None]).all(axis=2)[~np.eye(40, dtype=bool)].any()
    # The counts of all draws together carry the noise of one.
    many = [
        stacked(
            {f"{n} {k}": a for n in range(40) for k, a in _noise(sigma, n + 40 * trial)},
            "signal",
            "count",
            40,
            short=True,
        )
        for trial in range(200)
    ]
    counts = np.concatenate([each["count"] for each in many]) / FIXED_POINT_ONE / sigma
    assert abs(counts.std() - 1.0) < 5.0 / math.sqrt(2 * counts.size)


def _noise(sigma: float, seed: int) -> list[tuple[str, np.ndarray]]:
    generator = np.random.Generator(np.random.PCG64(seed))
    shapes = {"signal": (3, 16), "count": (3, 1)}
    return [
        (name, np.rint(generator.normal(size=size) * sigma * FIXED_POINT_ONE).astype(np.int64))
        for name, size in shapes.items()
    ]


# Hostile requests -----------------------------------------------------------------------------------------------------


def with_stage_input(**changes: Any) -> dict[str, Any]:
    chosen = values(auxiliary="generated")
    return {"settings": chosen.model_dump(mode="json"), "stage": 1, "stage_input": stage_input_of(chosen)} | changes


def spoiled(**arrays: np.ndarray) -> dict[str, Any]:
    return with_stage_input(stage_input={**stage_input_of(values(auxiliary="generated")), **arrays})


GOOD = stage_input_of(values(auxiliary="generated"))
HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "dimensions left open": ({"settings": SMALL | {"dimensions": "auto"}}, "dimensions open"),
    "more dimensions than features": ({"settings": SMALL | {"dimensions": 17}}, "no subspace of 17 dimensions"),
    "more dimensions than images": ({"settings": SMALL | {"dimensions": 20}}, "auxiliary images have fewer"),
    "a subspace of gradients": ({"settings": SMALL | {"dimensions": 3, "signal": "gradients"}}, "subspace is for"),
    "squares without a subspace": ({"settings": SMALL | {"moments": 2}}, "moments = 2 is for features in a subspace"),
    "whitening without a subspace": (
        {"settings": SMALL | {"whitening": 0.5}},
        "whitening is for features in a subspace",
    ),
    "squares of gradients": (
        {"settings": SMALL | {"moments": 2, "signal": "gradients"}},
        "moments = 2 is for features in a subspace",
    ),
    "networks too wide": ({"settings": SMALL | {"width": 513}}, "width"),
    "networks too deep": ({"settings": SMALL | {"depth": 4}}, "networks of depth 4 are not for records of shape"),
    "absurd draws": ({"settings": SMALL | {"draws": 10**9}}, "draws"),
    "no draws": ({"settings": SMALL | {"draws": 0}}, "draws"),
    "nobody is sampled": ({"settings": SMALL | {"rate": 0.0}}, "rate"),
    "sampled twice": ({"settings": SMALL | {"rate": 1.5}}, "rate"),
    "an unknown setting": ({"settings": SMALL | {"noise": 0}}, "no such key"),
    "dm with a finite epsilon": ({"method": "dm"}, "matching without privacy"),
    "too many numbers": ({"settings": SMALL | {"draws": 20_000, "width": 512, "depth": 1}}, "numbers at once"),
    "too many bytes": ({"settings": SMALL | {"draws": 20_000, "width": 256, "depth": 1}}, "can be sent"),
    "wide gradients": ({"settings": SMALL | {"signal": "gradients", "width": 512, "draws": 300}}, "numbers at once"),
    "an input in stage 0": ({"stage_input": GOOD}, "stage 0 has no input"),
    "a stage too many": (with_stage_input(stage=2), "there is no stage 2"),
    "a second stage of one": ({"stage": 1, "stage_input": GOOD}, "there is no stage 1"),
    "a stage without an input": (with_stage_input(stage_input={}), "stage 1 has an input"),
    "too few images": (spoiled(images=GOOD["images"][:-1]), "should bring"),
    "images of another shape": (spoiled(images=GOOD["images"].transpose(0, 2, 1, 3)), "should bring"),
    "images in floats": (spoiled(images=GOOD["images"].astype(np.float32)), "images in bytes"),
    "labels in floats": (spoiled(labels=GOOD["labels"].astype(np.float64)), "labels in 64 bits"),
    "too few labels": (spoiled(labels=GOOD["labels"][:-1]), "should bring"),
    "an array too many": (spoiled(more=np.zeros(3)), "should bring"),
    "an array too few": (with_stage_input(stage_input={"images": GOOD["images"]}), "should bring"),
}


@pytest.fixture(scope="module")
def blind(tmp_path_factory: pytest.TempPathFactory) -> Silo:
    """A silo that cannot read its records."""
    folder = tmp_path_factory.mktemp("blind") / "north"
    silo = matching_silo(folder)
    (folder / "records.npz").unlink()
    return silo


@pytest.mark.parametrize("changes, why", HOSTILE.values(), ids=HOSTILE)
def test_hostile_requests_are_refused_in_a_sentence_and_cost_nothing(
    blind: Silo, changes: dict[str, Any], why: str
) -> None:
    silo = blind
    started = time.process_time()
    refusal = silo.answer(asked(values(), **{"epsilon": 1.0} | changes).encode())
    assert isinstance(refusal, Refusal) and refusal.reason == Reason.MALFORMED, refusal
    assert why in refusal.message and "\n" not in refusal.message and len(refusal.message) < 500
    assert silo.ledger().status().reserved == 0
    assert time.process_time() - started < 5.0


@pytest.mark.parametrize("shape", [(64,), (1, 3, 300), (1, 300, 3)])
def test_records_that_no_network_can_look_at_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="are not for records of shape"):
        query("dosser").plan(replace(asked(values()), shape=shape), values())


@settings(max_examples=150, deadline=None)
@example({"draws": 1, "width": 84, "depth": 1, "auxiliary_images": 10}, (3, 224, 224), 2)
@given(
    st.fixed_dictionaries(
        {
            "draws": st.integers(1, 20_000),
            "width": st.integers(4, 512),
            "depth": st.integers(1, 4),
            "dimensions": st.integers(0, 2048),
            "auxiliary_images": st.integers(10, 5000),
            "signal": st.sampled_from(["features", "gradients"]),
            "encoding": st.sampled_from(["short", "exact"]),
            "auxiliary": st.sampled_from(["leaves", "generated"]),
        }
    ),
    st.sampled_from([(1, 28, 28), (3, 32, 32), (3, 224, 224), (1, 8, 8), (4, 64, 64)]),
    st.integers(2, 1000),
)
def test_no_request_makes_a_silo_hold_or_send_absurdly_much(
    changes: dict[str, Any], shape: tuple[int, ...], classes: int
) -> None:
    names = tuple(f"c{n}" for n in range(classes))
    try:
        chosen = values(**changes)
        plan = query("dosser").plan(replace(asked(chosen), shape=shape, classes=names), chosen)
    except (ConfigError, ValueError):
        return
    features = feature_count(shape, chosen.width, chosen.depth)
    length = signal_settings(chosen, RunDescription(names, shape, 0)).length
    sums = chosen.draws * classes * (length + 1)
    assert max(plan.coordinates, sums) <= 2**28 and plan.bytes < MOST_BYTES
    assert features <= MOST_FEATURES and mechanism.BATCH * length <= 2**28
    assert max(features, math.prod(shape)) * chosen.auxiliary_images <= 2**28


def test_the_papers_own_schedules_are_not_too_large() -> None:
    """Ten thousand draws of all 2,048 features of a CIFAR-10 network, in sixteen bits."""
    chosen = values(draws=10_000, width=128, depth=3, encoding="short")
    request = replace(asked(chosen), shape=(3, 32, 32), classes=tuple(f"c{n}" for n in range(10)))
    assert query("dosser").plan(request, chosen).bytes == 2 * 10_000 * 10 * 2048 + 80 + 8


def test_what_a_coordinator_makes_of_auto_is_one_number_that_silos_accept() -> None:
    """Whatever each silo's ε: sums over different subspaces could not be added up."""
    small = {**SMALL, "dimensions": "auto", "rate": 1.0, "draws": 3, "width": 8}
    scenario = Scenario.model_validate(
        {
            "name": "asked",
            "data": {"dataset": "fashion-slice"},
            "method": {"name": "dosser", "settings": small},
            "privacy": {"epsilon": 1.0, "epsilons": {"north": 4.0}},
        }
    )
    asked_of = [group.request for group in request_groups(scenario, ["north", "south"])]
    assert len({request.epsilon for request in asked_of}) == 2
    (dimensions,) = {request.settings["dimensions"] for request in asked_of}
    assert isinstance(dimensions, int) and 1 <= dimensions <= 10
    for request in asked_of:
        chosen = METHODS["dosser"].settings(request.settings)
        assert isinstance(chosen, MethodSettings) and chosen.on_wire() == request.settings
        assert query("dosser").plan(request, chosen).coordinates == 3 * 10 * (dimensions + 1)


@pytest.mark.parametrize("pixel", [0, 128])
@kinds
def test_auxiliary_images_without_any_content_are_answered(tmp_path: Path, kind: str, pixel: int) -> None:
    """Nothing that a coordinator asks with makes a silo fail once its budget is set aside."""
    chosen = values(**KINDS[kind], auxiliary="generated", draws=2, rate=1.0)
    stage_input = {**stage_input_of(chosen), "images": np.full_like(stage_input_of(chosen)["images"], pixel)}
    request = replace(asked(chosen), stage=1, stage_input=stage_input)
    images, labels = hostile()
    records = Records(images[8:], labels[8:])
    plan = query("dosser").plan(request, chosen)
    found = MECHANISM.run(records, request, chosen, plan, SeededEntropy(0), lambda *_: None)
    counts = found.arrays["count"][:, 0] / FIXED_POINT_ONE / count_weight(chosen, 1)
    np.testing.assert_allclose(counts, np.bincount(labels[8:], minlength=3), atol=1e-3)
