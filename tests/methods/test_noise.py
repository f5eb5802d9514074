"""Noise as it leaves a silo: on every segment, of its stated width to a fiftieth, and from nowhere public."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpdd.client import answering
from dpdd.client.mechanisms import matching
from dpdd.client.records.records import Records
from dpdd.common.errors import IntegrityError
from dpdd.common.privacy import discrete_gaussian, sampling
from dpdd.common.privacy.clipping import Layout
from dpdd.common.privacy.entropy import Entropy, SeededEntropy
from dpdd.common.privacy.sampling import SampledSum
from tests.methods.cases import all_cases
from tests.methods.harness import CLASSES, DELTA, Case, Trial, answers, check_plan, make_silo
from tests.methods.noise_checks import check_noise, is_standard, released_noise

PRIVATE = [case for case in all_cases() if case.private]
WIDE = Case("dp-merf", "wide", {"features": 50_000}, shape=(1, 4, 4))
"""200,000 numbers: their variance is known to 0.3 %, so 4 % less of it is 12 standard deviations away."""
SAMPLED = next(case for case in all_cases() if case.method == "ndpdc")
SAMPLING = [
    case
    for case in PRIVATE
    if hasattr(case.entry.settings_schema, "rate") or "rate" in case.entry.settings_schema.model_fields
    if any(getattr(case.values(), name, 1.0) < 1.0 for name in ("rate", "expert_rate"))
]
_GENG = next(case for case in SAMPLING if case.method == "dp-geng")
_STEPS = {**_GENG.settings, "expert_steps": 3, "expert_rate": 0.5}
SAMPLING.append(replace(_GENG, variant="sampled-expert", settings=_STEPS, adaptive=True))


@pytest.mark.parametrize("case", PRIVATE, ids=str)
def test_every_segment_has_its_noise(case: Case, tmp_path: Path) -> None:
    check_noise(case, tmp_path)


def test_the_width_is_the_stated_one(tmp_path: Path) -> None:
    check_noise(WIDE, tmp_path)


@pytest.mark.parametrize("factor", [0.98, 1.02])
def test_a_width_off_by_a_fiftieth_is_seen(factor: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(scale: Any, count: int, entropy: Entropy) -> NDArray[np.int64]:
        return np.rint(factor * original(scale, count, entropy)).astype(np.int64)

    original = discrete_gaussian.sample
    monkeypatch.setattr(discrete_gaussian, "sample", scaled)
    with pytest.raises(AssertionError, match="noise of"):
        check_noise(WIDE, tmp_path)


def test_counts_without_noise_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sample(scale: Any, count: int, entropy: Entropy) -> NDArray[np.int64]:
        return original(scale, count, entropy) * (count != len(CLASSES))

    original = discrete_gaussian.sample
    monkeypatch.setattr(discrete_gaussian, "sample", sample)
    noise = released_noise(PRIVATE[0], tmp_path / "north")
    assert [name for name, values in noise.items() if not is_standard(values)] == ["0 count"]


def test_a_sample_from_a_public_seed_is_not_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def public(layout: Layout, rate: float, records: int, _entropy: Entropy) -> SampledSum:
        return SampledSum(layout, rate, records, SeededEntropy(5))

    monkeypatch.setattr(matching, "SampledSum", public)
    with pytest.raises(IntegrityError, match="another source"):
        answers(make_silo(tmp_path / "north", SAMPLED, 12), SAMPLED)


@pytest.mark.parametrize("case", SAMPLING, ids=str)
def test_every_sum_has_a_sample_of_its_own(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is added to a sum is who was drawn for it, and no two sums of a release are over the same 64 records."""
    drawn: list[list[int]] = []
    added: dict[int, tuple[SampledSum, set[int]]] = {}
    rates: set[float] = set()

    def sample(records: int, rate: float, entropy: Entropy) -> NDArray[np.int64]:
        found = original_sample(records, rate, entropy)
        rates.add(rate)
        drawn.append(found.tolist())
        return found

    def admitted(total: SampledSum, members: NDArray[np.int64]) -> NDArray[np.bool_]:
        found = original_admitted(total, members)
        added.setdefault(id(total), (total, set()))[1].update(np.flatnonzero(found).tolist())
        return found

    original_sample, original_admitted = sampling.poisson_sample, SampledSum._admitted
    trial, (features, labels), entropy = Trial.of(case), case.records(64, seed=12), SeededEntropy(9)
    monkeypatch.setattr(sampling, "poisson_sample", sample)
    monkeypatch.setattr(SampledSum, "_admitted", admitted)
    for stage in trial.stages:
        trial.answer(features, labels, range(64), stage, math.inf, entropy)
    assert [sorted(members) for _, members in added.values()] == drawn, "others were added than were drawn"
    assert rates <= {0.25, 0.375, 0.5, 1.0} and len(drawn) > 1
    secret = [tuple(members) for members in drawn if len(members) < 64]
    assert secret and len(set(secret)) == len(secret), "two sums are over one sample"


@pytest.mark.parametrize("case", PRIVATE, ids=str)
def test_the_distance_to_ideal_noise_comes_off_delta(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampler's own distance is too small to show; one that costs a third of δ shows in the noise."""
    trial = Trial.of(case)
    coordinates = sum(trial.plan(stage, case.epsilon).coordinates for stage in trial.stages)
    each = DELTA / 3.0 / (1.0 + np.exp(case.epsilon)) / coordinates
    monkeypatch.setattr(discrete_gaussian, "distance", lambda _scale: float(each))
    check_plan(case)


def test_records_are_read_once_and_not_after_the_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []
    closed: list[bool] = []

    def load(*arguments: Any) -> Any:
        assert not closed, "records are read after the release"
        loads.append("load")
        return original_load(*arguments)

    def release_of(*arguments: Any, **options: Any) -> Any:
        closed.append(True)
        return original_release(*arguments, **options)

    def guarded(name: str) -> Any:
        def method(*arguments: Any, **options: Any) -> Any:
            assert not closed, "records are read after the release"
            return original(*arguments, **options)

        original = getattr(Records, name)
        return method

    for name in ("batches", "read"):
        monkeypatch.setattr(Records, name, guarded(name))
    original_load, original_release = answering.load_records, answering.release_of
    monkeypatch.setattr(answering, "load_records", load)
    monkeypatch.setattr(answering, "release_of", release_of)
    case = PRIVATE[0]
    silo = make_silo(tmp_path / "north", case, 12)
    ((request, data),) = answers(silo, case)
    assert (loads, closed) == (["load"], [True])
    (tmp_path / "north" / "records.npz").unlink()
    again = silo.answer(request.encode())
    assert again.data == data and loads == ["load"]  # type: ignore[union-attr]
