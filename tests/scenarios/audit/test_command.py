"""`dpdd-sim audit`: the whole of it on a tiny scenario, and what it says of builds with less noise."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpdd.client.auditing.one_run import AuditPlan
from dpdd.common.errors import DpddError
from dpdd.common.privacy import discrete_gaussian
from dpdd.common.privacy.entropy import SeededEntropy
from dpdd.scenarios.audit.command import audited, check
from dpdd.scenarios.audit.less_noise import less_noise
from dpdd.scenarios.audit.noise import noise_of_segments, residuals, together
from dpdd.scenarios.cli import main
from tests.client.silos import make_request
from tests.scenarios.tiny_runs import tiny_scenario

WIDE = make_request(settings={"features": 8000})  # 48,000 numbers, so that a scale off by 5 % shows
CODED = make_request(
    method="dp-cda",
    settings={"mixtures_per_class": 3, "order": 4.0, "class_size": 8},
)


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    path = tmp_path / "tiny.toml"
    path.write_text(tiny_scenario().replace("features = 16", "features = 400"))
    return str(path)


def test_an_audit_is_printed_and_kept(scenario: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--canaries", "150", "--out", str(tmp_path / "out"), "--quiet", "--records", "40"]
    assert main(["audit", scenario, *options, "--epsilon", "2"]) == 0
    out = capsys.readouterr().out
    assert "claimed          ε = 2" in out and "embedding" in out and "FAILS" not in out
    (build,) = json.loads((tmp_path / "out" / "audit.json").read_text())["builds"]
    assert build["passes"] and build["noise_factor"] == 1.0 and build["attack"]["canaries"] == 150
    assert {row["segment"] for row in build["noise"]} == {"embedding", "count"}


def test_prove_shows_builds_that_fail(scenario: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--canaries", "150", "--out", str(tmp_path / "out"), "--json", "--prove"]
    assert main(["audit", scenario, *options]) == 0
    builds = json.loads(capsys.readouterr().out)["builds"]
    assert [(build["noise_factor"], build["passes"]) for build in builds] == [(1.0, True), (0.5, False), (0.25, False)]


def test_odd_options_are_a_sentence(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", scenario, "--quiet", "--records", "10000000"]) == 3
    assert "the scenario has" in capsys.readouterr().err
    assert main(["audit", scenario, "--quiet", "--confidence", "2"]) == 3
    assert "a confidence lies in" in capsys.readouterr().err


def test_an_audit_that_fails_and_one_that_proves_nothing_are_errors() -> None:
    build = audited(make_request(), AuditPlan(canaries=40, noise_seed=1), 1)
    assert build.passes
    with pytest.raises(DpddError, match=r"does not see that only 0\.5 of the noise"):
        check([build, replace(build, factor=0.5)])
    less = audited(make_request(settings={"features": 500}), AuditPlan(canaries=40, noise_seed=1), 1, 0.5)
    assert not less.noise_passes
    with pytest.raises(DpddError, match="contradicts what this build claims"):
        check([less])


# Builds with less noise


def test_half_of_the_noise_at_epsilon_8_and_a_quarter_at_1_are_refuted_by_the_attack_alone() -> None:
    from tests.methods.audits import plain_gaussian

    def refuted(epsilon: float, factor: float) -> tuple[bool, float]:
        plan = AuditPlan(canaries=7000, seed=1, noise_seed=1, family="pixels")
        found = audited(plain_gaussian(epsilon), plan, 1, factor).attack
        return found.refuted, found.one_run_bound

    assert refuted(8.0, 0.5)[0]
    quarter, bound = refuted(1.0, 0.25)
    assert quarter and bound > 1.0


def test_less_noise_is_less_and_ends() -> None:
    def spread() -> float:
        scale = discrete_gaussian.scale_for(1e6)
        return float(discrete_gaussian.sample(scale, 4000, SeededEntropy(1)).std())

    whole = spread()
    with less_noise(0.25):
        assert abs(spread() / whole - 0.25) < 1e-3
        with pytest.raises(RuntimeError, match="less noise already"), less_noise(0.5):
            pass
    assert spread() == whole


@pytest.mark.parametrize("factor", [1.0, 1.5, -0.5, float("nan")])
def test_less_noise_is_never_more(factor: float) -> None:
    with pytest.raises(ValueError, match="below 1"), less_noise(factor):
        pass


# Its noise


@pytest.mark.parametrize(("factor", "passes"), [(1.0, True), (0.95, False), (1.05, False)])
def test_a_twentieth_of_the_scale_is_found_either_way(
    factor: float, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = discrete_gaussian.sample
    monkeypatch.setattr(discrete_gaussian, "sample", lambda *given: np.rint(factor * original(*given)).astype(np.int64))
    tests, left_out = noise_of_segments(WIDE, 1, 3)
    by_name = {each.segment: each.test for each in tests}
    assert by_name["embedding"].passes == passes and by_name["embedding"].finds < 0.05 and not left_out


def test_noise_is_pooled_over_releases() -> None:
    tests, _ = noise_of_segments(make_request(), 6, 3)
    assert {each.segment: each.test.numbers for each in tests} == {"count": 18, "embedding": 6 * 3 * 32}
    assert all(each.test.passes for each in tests)


def test_sums_below_each_other_and_added_counts_are_put_together() -> None:
    found, left_out = residuals(CODED, 4)
    assert {name for _, name in found} == {"mixture", "count"} and not left_out
    assert all(0.3 < np.sqrt(np.square(values).mean()) < 2.0 for values in found.values())


def test_what_is_put_together_in_another_way_is_left_out() -> None:
    sums = [{"gradient": np.ones((1, 4)), "count": np.ones((3, 1))}] * 4
    found = together(sums, {"gradient": (1, 4), "count": (3, 1), "odd": (2, 2)})
    assert found.keys() == {"count"} and (found["count"] == 2.0).all()
