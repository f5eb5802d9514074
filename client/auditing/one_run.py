"""One release of a silo with canaries, attacked: how many coins it gave away, and which ε that refutes.

Coins are thrown first: each canary is among the records or not. The silo reads its files and answers the request,
stage after stage, as it would anybody. The attacker knows the request with its public seeds, all canaries, and all
records that are none; not the coins, the noise, and who was sampled. It guesses as many coins as was fixed beforehand,
and those are compared with the truth.

What a canary adds is known to the last digit for every method that sums contributions (`contributions`). Sums that a
method joins after the noise are taken apart where that can be done; otherwise they are not looked at, which only makes
an attack weaker.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpdd.client.auditing.canaries import best_family, canaries, families
from dpdd.client.auditing.contributions import Contributions, clean_sums, recorded
from dpdd.client.auditing.scoring import Observation, scores
from dpdd.client.auditing.scratch import scratch_silo
from dpdd.client.records.records import Records
from dpdd.client.silo import Silo
from dpdd.common.config import Settings
from dpdd.common.errors import ConfigError
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.registry import method, query
from dpdd.common.methods.request_plan import plan_of, settings_of
from dpdd.common.methods.verification import expected_of, verified
from dpdd.common.privacy.auditing import (
    OneRun,
    allows,
    claimed_inverse,
    curve_bound,
    curve_guess_count,
    guess_count,
    one_run_bound,
)
from dpdd.common.privacy.events import Event, Gaussian, PoissonGaussian, compose, parts
from dpdd.common.progress import Progress, silent
from dpdd.common.randomness import uniforms
from dpdd.common.synthesis.distilled_set import method_values
from dpdd.common.synthesis.statistics import Statistics, of_one_silo
from dpdd.common.wire.answer import SignedReleaseBytes
from dpdd.common.wire.release import open_signed
from dpdd.common.wire.request import Kind, ReleaseRequest

CURVE_SHARE = 0.2
"""Of the error that is allowed, for the trade-off curve: both bounds of an audit hold together at its confidence."""
NOT_A_NUMBER = "not-a-number"
"""Canaries that are no images: they must add nothing, so nobody can tell whether they are there."""


@dataclass(frozen=True)
class AuditPlan:
    """What is fixed before a coin is thrown.

    `family` None stands for the canaries that stand out most; `stages` are those that are looked at, None all. Noise is
    the silo's own unless there is a `noise_seed`, which makes an audit repeatable.
    """

    canaries: int = 1000
    confidence: float = 0.95
    seed: int = 0
    family: str | None = None
    stages: int | None = None
    noise_seed: int | None = None

    def __post_init__(self) -> None:
        if self.canaries < 1:
            raise ConfigError(f"an audit has at least one canary, not {self.canaries}")
        if not 0.5 <= self.confidence < 1.0:
            raise ConfigError(f"a confidence lies in [0.5, 1), not {self.confidence:g}")


@dataclass(frozen=True)
class AuditResult:
    """What an attack found, beside what is claimed."""

    method: str
    claimed_epsilon: float
    delta: float
    confidence: float
    family: str
    one_run: OneRun
    one_run_bound: float
    curve_run: OneRun
    curve_bound: float
    curve_refuted: bool

    @property
    def refuted(self) -> bool:
        """Whether the claim is false, at the stated confidence."""
        return self.one_run_bound > self.claimed_epsilon or self.curve_refuted


@dataclass(frozen=True, eq=False)
class Attack:
    """Coins and scores of one release, and the event that it claims."""

    coins: NDArray[np.bool_]
    scores: NDArray[np.float64]
    event: Event
    family: str

    def right(self, guesses: int) -> OneRun:
        """So many coins are guessed, those with the surest scores."""
        surest = np.argsort(-np.abs(self.scores), kind="stable")[:guesses]
        correct = int(((self.scores[surest] > 0.0) == self.coins[surest]).sum())
        return OneRun(len(self.coins), guesses, correct)


def audit(
    request: ReleaseRequest, plan: AuditPlan, others: Records | None = None, progress: Progress = silent
) -> AuditResult:
    """Attack one release for `request`, of a silo with canaries and the records `others`."""
    error, claim = 1.0 - plan.confidence, (request.epsilon, request.delta)
    sure, surer = 1.0 - error * (1.0 - CURVE_SHARE), 1.0 - error * CURVE_SHARE
    counts = guess_count(plan.canaries, *claim, sure), curve_guess_count(plan.canaries, *claim, surer)
    found = attack(request, plan, others, progress)
    one, curve = (found.right(count) for count in counts)
    return AuditResult(
        request.method,
        request.epsilon,
        request.delta,
        plan.confidence,
        found.family,
        one,
        one_run_bound(one, request.delta, sure),
        curve,
        curve_bound(curve, request.delta, surer),
        not allows(curve.canaries, curve.guesses, curve.correct, 1.0 - surer, claimed_inverse(found.event)),
    )


def attack(
    request: ReleaseRequest, plan: AuditPlan, others: Records | None = None, progress: Progress = silent
) -> Attack:
    """Throw the coins, get the release, and score every canary."""
    request = statistics_request(request)
    run = RunDescription.of(request)
    known = (*families(run), NOT_A_NUMBER)
    if plan.family is not None and plan.family not in known:
        raise ConfigError(f"there are no canaries {plan.family!r} for these records; known are {', '.join(known)}")
    family = plan.family or best_family(request, plan.canaries, _noise(plan_of(request).event)[0][0])
    features, labels = _made(family, plan, run)
    coins = uniforms(plan.seed, "coins of an audit", plan.canaries) < 0.5
    present, present_labels = features[coins], labels[coins]
    if others is not None:
        present = np.concatenate([present, others.read(slice(None))])
        present_labels = np.concatenate([present_labels, others.labels])
    observations: list[Observation] = []
    with tempfile.TemporaryDirectory(prefix="dpdd-audit-") as scratch:
        silo = scratch_silo(Path(scratch) / "audit", request, present, present_labels, plan.noise_seed)
        releases = answers(silo, request, plan.stages, progress)
    for number, (asked, statistics) in enumerate(releases):
        progress("attacking", number, len(releases))
        observations += observed(asked, statistics, recorded(Records(features, labels), asked), others)
    progress("attacking", len(releases), len(releases))
    if not observations:
        raise ConfigError(f"nothing that {request.method} releases at these settings can be attacked sum by sum")
    events = [plan_of(asked).event for asked, _ in releases]
    whole = plan_of(request).whole
    return Attack(coins, scores(observations), whole or compose(*events), family)


def statistics_request(request: ReleaseRequest) -> ReleaseRequest:
    """The same request for noisy sums, from which a finished set would be made in the silo."""
    if request.kind is Kind.STATISTICS:
        return request
    if request.kind is not Kind.DISTILLED_SET or Kind.STATISTICS not in query(request.method).release_kinds:
        raise ConfigError(f"{request.method} releases no sums that an audit could attack")
    return replace(request, kind=Kind.STATISTICS, settings=dict(method_values(request)))


def _made(family: str, plan: AuditPlan, run: RunDescription) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    if family != NOT_A_NUMBER:
        return canaries(family, plan.canaries, run, plan.seed)
    features = np.full((plan.canaries, *run.shape), 0.5, np.float32)
    features.reshape(plan.canaries, -1)[:, 0] = np.nan
    return features, (np.arange(plan.canaries) % len(run.classes)).astype(np.int64)


def answers(
    silo: Silo, request: ReleaseRequest, most: int | None = None, progress: Progress = silent
) -> list[tuple[ReleaseRequest, Statistics]]:
    """All stages of a release, or the first ones, asked as a coordinator would with this silo alone."""
    chosen = query(request.method)
    settings: Settings = settings_of(request)
    stages = chosen.stages(settings) if most is None else min(most, chosen.stages(settings))
    found: list[tuple[ReleaseRequest, Statistics]] = []
    for stage in range(stages):
        progress("asking the silo", stage, stages)
        asked = request
        if stage:
            known = [statistics for _, statistics in found]
            given = method(request.method).stage_input(known, settings, RunDescription.of(request))
            asked = replace(request, stage=stage, stage_input=dict(given))
        answer = silo.answer(asked.encode())
        if not isinstance(answer, SignedReleaseBytes):
            raise ConfigError(f"the silo refuses what is to be audited: {answer.message}")
        release = verified(open_signed(answer.data, silo.public_key), expected_of(asked))
        found.append((asked, of_one_silo(release.arrays, release.event, asked.stage_input)))
    progress("asking the silo", stages, stages)
    return found


def observed(
    request: ReleaseRequest, statistics: Statistics, made: Sequence[Contributions], others: Records | None
) -> list[Observation]:
    """What each noisy sum of a stage says of canaries, less what everybody else adds to it."""
    noise = _noise(plan_of(request).event)
    if len(noise) != len(made):
        raise ConfigError(f"{request.method} makes {len(made)} sums and plans the noise of {len(noise)}")
    known = clean_sums(others, request) if others is not None else [{}] * len(made)
    found = []
    for number, (contributions, (sigma, rate)) in enumerate(zip(made, noise, strict=True)):
        sums = part_of(statistics.sums, contributions, number, len(made))
        missing = [segment.name for segment in contributions.plain if segment.name not in sums]
        if not sums:
            continue
        less = {name: array - rate * known[number].get(name, 0.0) for name, array in sums.items()}
        found.append(Observation(contributions.without(missing), less, sigma, rate))
    return found


def part_of(
    released: Mapping[str, NDArray[np.float64]], contributions: Contributions, number: int, count: int
) -> dict[str, NDArray[np.float64]]:
    """The noisy sum of this number, out of what is released: rows of several sums lie one below the other.

    What was added up over sums is left out.
    """
    if count == 1:
        return dict(released)
    rows = {segment.name: segment.rows for segment in contributions.plain}
    return {
        name: array[number * rows[name] : (number + 1) * rows[name]]
        for name, array in released.items()
        if name in rows and len(array) == count * rows[name]
    }


def _noise(event: Event) -> list[tuple[float, float]]:
    """σ and the rate of the sample for each sum of a stage."""
    found: list[tuple[float, float]] = []
    for part in parts(event):
        if isinstance(part, Gaussian):
            found += [(part.sigma, 1.0)] * part.releases
        elif isinstance(part, PoissonGaussian):
            found += [(part.sigma, part.rate)] * part.steps
        else:
            raise ConfigError("a release without noise claims nothing that an audit could refute")
    return found
