"""DP-GENG, planned: parts share the budget, all of it is spent and no more, and odd requests are refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpdd.common.errors import ConfigError
from dpdd.common.methods.dp_geng import planning
from dpdd.common.methods.dp_geng.published import epsilon_by_limit, epsilon_of, mu_of
from dpdd.common.methods.dp_geng.specification import Part, input_forms, part_of, stages
from dpdd.common.methods.registry import method
from dpdd.common.methods.request_plan import plan_of
from dpdd.common.privacy.accounting import EXACT, guarantee
from dpdd.common.privacy.events import Gaussian, PoissonGaussian, compose, parts
from tests.common.methods.dp_geng.small import RUN, request_of, settings_of

EVERYBODY = {"rate": 1.0, "expert_rate": 1.0}


@pytest.mark.parametrize("shares", [(0.27, 1.48, 1.30), (1.0, 0.0, 2.0), (1.0, 3.0, 0.0), (1.0, 0.0, 0.0)])
def test_parts_have_their_shares_and_the_whole_is_spent(shares: tuple[float, float, float]) -> None:
    settings = settings_of(shares=shares, **EVERYBODY)
    assert stages(settings) == sum(share > 0 for share in shares)
    plan = plan_of(request_of(settings))
    whole = plan.whole or plan.event
    found = [math.sqrt(part.releases) / part.sigma for part in parts(whole) if isinstance(part, Gaussian)]
    kept = [share for share in shares if share]
    assert np.allclose(np.array(found) / math.hypot(*found), np.array(kept) / math.hypot(*kept))
    exact = guarantee(whole, 1e-5)
    assert exact.accountant == EXACT and exact.epsilon == pytest.approx(1.0, abs=1e-9)


def test_the_papers_figure_is_that_of_all_stages_together() -> None:
    settings = settings_of(**EVERYBODY)
    plan = plan_of(request_of(settings))
    sampled = compose(Gaussian(4.0), PoissonGaussian(0.5, 0.01, 100), PoissonGaussian(0.7, 0.02, 50))
    for whole in (plan, replace(plan, whole=sampled), replace(plan, event=sampled, whole=None)):
        published = method("dp-geng").published_epsilon(settings, RUN, whole)
        assert published == epsilon_by_limit(whole.whole or whole.event, 1e-5)
    assert epsilon_of(plan) == pytest.approx(1.0), "exact for plain Gaussians"
    assert epsilon_of(plan_of(request_of(settings, epsilon=math.inf))) is None


@pytest.mark.parametrize(("part", "rate", "steps"), [("matching", 0.05, 200), ("expert", 0.02, 60)])
def test_a_sampled_part_has_the_noise_that_its_share_is_worth(part: Part, rate: float, steps: int) -> None:
    settings = settings_of(rate=0.05, draws=200, expert_rate=0.02, expert_steps=60)
    event = planning._event(settings, part, mu=0.4)
    assert isinstance(event, PoissonGaussian) and (event.rate, event.steps) == (rate, steps)
    assert mu_of(event) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"expert_norm": "batch"}, 'layer 1 of the expert is a BatchNorm2d.*give it GroupNorm.*expert_norm = "group"'),
        ({"expert_depth": 4}, "an expert of depth 4 is not for records"),
        ({"depth": 4}, "networks of depth 4 are not for records"),
        ({"dimensions": 100, "auxiliary_images": 200}, "has no subspace of 100 dimensions"),
        ({"generator_settings": {"feature": 3}}, "feature"),
    ],
)
def test_what_no_silo_could_answer_is_refused_before_anything_is_spent(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        plan_of(request_of(settings_of(**{**EVERYBODY, **changes})))


@pytest.mark.parametrize("shares", [(0, 1, 1), (1, math.nan, 1), (1, -1, 0), (1, 1e-9, 0)])
def test_odd_shares_are_refused(shares: tuple[float, float, float]) -> None:
    with pytest.raises(ConfigError, match="share"):
        method("dp-geng").settings({"shares": shares})


@pytest.mark.parametrize("stage", [1, 2])
def test_a_stage_is_asked_with_its_own_arrays_only(stage: int) -> None:
    settings = settings_of(**EVERYBODY)
    forms = input_forms(settings, RUN, part_of(settings, stage))
    right = {name: np.zeros(shape, dtype) for name, (dtype, shape) in forms.items()}
    assert plan_of(request_of(settings, stage=stage, inputs=right)).event
    first = next(iter(right))
    wider = {**right, first: right[first].astype(np.float64 if right[first].dtype != np.float64 else np.float32)}
    for wrong in ({}, {**right, "more": np.zeros(1)}, wider, {**right, first: right[first][:-1]}):
        with pytest.raises(ConfigError, match="should be with"):
            plan_of(request_of(settings, stage=stage, inputs=wrong))
