"""Whether a release is what its request asks for, and its ε what its noise gives: recomputed, never believed.

A silo signs what it states, and whoever signs can state anything. All that a release states beside its numbers follows
from its request (`dpdd.common.methods.plan`), so anybody who has both can compare them:

>>> from dpdd.common.wire.request import ReleaseRequest
>>> request = ReleaseRequest("demo", "dp-merf", {"features": 100}, 1.0, 1e-5, ("cat", "dog"), (1, 8, 8), public_seed=7)
>>> expected = expected_of(request)
>>> describe(expected.plan.event), expected.most_bytes
('Gaussian, σ = 3.73063', 68764)
>>> f"{recomputed_guarantee(expected.plan.event, 0.0, 1e-5).epsilon:.6f}"
'1.000000'
>>> check_guarantee("north", expected.plan.guarantee, Gaussian(0.05), 0.0)
Traceback (most recent call last):
dpdd.common.errors.IntegrityError: silo north states ε = 1 at δ = 1e-05, and its noise costs 284.392: Gaussian, σ = 0.05

What may differ: a release may have fewer rows where the plan says `at_most`, and noise that is nearer to the ideal.
Everything else is equal, but for rounding. σ comes out of a calibration, and two machines need not agree on its last
digits. For plain Gaussians that is a bisection to 1e-14 of special functions, and σ may differ by a relative 1e-9.
Where samples are accounted for, the search stops within 1e-6 of the smallest σ (`calibrate`), and on which side of a
step it stops may hang on the last bit of a transform: σ may differ by 2e-6. A silo that goes to the end of that has
this share less noise than was asked for, and no more. ε is recomputed of the noise that is stated, and may be above
what is stated by 1e-9, and with samples by 1e-7: the transforms' last bits move it by 3e-9 over 10,000 steps.

What cannot be told from a release: whether its numbers are what the silo's records give, and whether the noise that it
states was drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from dpdd.common.config import one_line
from dpdd.common.errors import ConfigError, IntegrityError, WireError
from dpdd.common.methods.plan import ENVELOPE, ArrayType, Plan
from dpdd.common.methods.request_plan import plan_of
from dpdd.common.privacy.accounting import Guarantee, guarantee, rdp_guarantee
from dpdd.common.privacy.events import (
    Event,
    Gaussian,
    NonPrivate,
    PoissonGaussian,
    describe,
    gaussian_mu,
    parts,
)
from dpdd.common.wire.release import Release, ReleaseHeader
from dpdd.common.wire.request import Kind, ReleaseRequest

ROUNDING, SEARCH, TRANSFORMS = 1e-9, 2e-6, 1e-7
"""Relatively, how far two honest calibrations may be apart, of plain Gaussians and with samples, and two honest ε, of
plain Gaussians (as far as σ) and with samples."""

LOOSE, FLOOR = 1.5, 0.05
"""How far Rényi accounting may be above ε of plain Gaussians: 1.5 times it, plus 0.05. For ε from 0.01 to 32 and δ from
1e-12 to 0.01 the most are 1.3 times where ε is 0.3 and more, and 0.043 more below."""

_GRID = 1e-4
"""Losses are rounded up to multiples of this, in each of the composed steps; so much lies a PLD above the truth."""

_COUNT = 6
"""Bytes that a public count takes at most: it is below 2^40."""


@dataclass(frozen=True)
class Expected:
    """What every answer to one request is: the request itself may be large, and is not kept."""

    request_id: str
    method: str
    kind: Kind
    classes: int
    plan: Plan

    @property
    def most_bytes(self) -> int:
        """What a signed release that answers the request takes, at most."""
        return self.plan.bytes + ENVELOPE + _COUNT * self.classes

    @property
    def tolerance(self) -> float:
        """How far σ may be from the plan's, relatively."""
        return ROUNDING if _plain(self.plan.whole or self.plan.event) else SEARCH


def expected_of(request: ReleaseRequest) -> Expected:
    """What the answers to `request` have to be; ConfigError where it can be asked of nobody, or not planned here."""
    try:
        plan = plan_of(request)
    except ValueError as error:
        raise ConfigError(f"request {request.id[:12]} cannot be answered: {one_line(error)}") from None
    return Expected(request.id, request.method, request.kind, len(request.classes), plan)


def check_size(size: int, expected: Expected) -> None:
    """WireError for more bytes than an answer to the request has."""
    if size > expected.most_bytes:
        raise WireError(
            f"an answer to request {expected.request_id[:12]} has at most {expected.most_bytes} bytes, not {size}"
        )


def verified(release: Release, expected: Expected) -> Release:
    """The release with the event that was planned, for aggregation; IntegrityError where it is not what was asked."""
    check_release(release.header, expected)
    return release.as_planned(expected.plan.event)


def check_release(stated: ReleaseHeader, expected: Expected) -> None:
    """IntegrityError, which names the silo and what differs, unless a release is what its request asks for."""
    plan = expected.plan

    def same(what: str, stands: object, asked: object, fits: bool) -> None:
        if not fits:
            raise IntegrityError(f"silo {stated.silo} sent a release with {what} {stands}; asked for is {asked}")

    if stated.request_id != expected.request_id:
        raise IntegrityError(f"silo {stated.silo} sent a release for another request")
    same("method", stated.method, expected.method, stated.method == expected.method)
    same("kind", stated.kind.words, expected.kind.words, stated.kind is expected.kind)
    same("noise", *_told_apart(stated.event, plan.event), _like(stated.event, plan.event, expected.tolerance))
    same("guarantee", _words(stated.guarantee), _words(plan.guarantee), stated.guarantee == plan.guarantee)
    most = plan.distance * (1.0 + 5.0 * expected.tolerance)  # it falls with the fourth power of σ
    same("a distance to ideal noise of", stated.distance, f"{plan.distance} at most", stated.distance <= most)
    arrays = ", ".join(f"{name}: {each}" for name, each in sorted(plan.array_types.items()))
    same("arrays", _arrays(stated.arrays), arrays, _fit(stated.arrays, plan.array_types))
    counts = len(stated.public_counts)
    same("public counts of classes:", counts, expected.classes, counts in (0, expected.classes))
    if stated.releasable and any(isinstance(part, NonPrivate) for part in parts(stated.event)):
        raise IntegrityError(f"silo {stated.silo} calls a release without protection releasable")


def recomputed_guarantee(
    event: Event,
    distance: float,
    delta: float,
    assumed: float = 1.0,
    account: Callable[[Event, float], Guarantee] = guarantee,
) -> Guarantee:
    """ε of `event` at `delta`, of which its noise's distance to the ideal, (1 + e^ε) times, comes off first.

    `assumed` is where the search for that ε starts: not above it, the first try is the answer.
    """
    while True:
        left = delta - (1.0 + math.exp(min(assumed, 700.0))) * distance
        if left <= 0.0:
            return Guarantee(math.inf, delta, "none")
        found = account(event, left)
        if found.epsilon <= assumed or math.isinf(found.epsilon):  # no less was taken off δ than this ε needs
            return Guarantee(found.epsilon, delta, found.accountant)
        assumed = found.epsilon + 1.0


def check_guarantee(silo: str, stated: Guarantee, event: Event, distance: float) -> Guarantee:
    """What the accountant finds for all that a silo released under one guarantee; IntegrityError where that is more."""
    if math.isinf(stated.epsilon):
        return Guarantee(math.inf, stated.delta, "none")
    most = stated.epsilon * (1.0 + (ROUNDING if _plain(event) else TRANSFORMS))
    found = recomputed_guarantee(event, distance, stated.delta, most)
    if found.epsilon > most:
        raise IntegrityError(
            f"silo {silo} states ε = {stated.epsilon:g} at δ = {stated.delta:g}, and its noise costs "
            f"{found.epsilon:.6g}: {describe(event)}"
        )
    return found


def second_opinion(silo: str, found: Guarantee, event: Event, distance: float) -> Guarantee:
    """ε by Rényi accounting; IntegrityError where it contradicts `found`.

    It is never below the true ε, so not below what is exact, for plain Gaussians; nor below a PLD by more than that is
    rounded up. Above it may be: of plain Gaussians by so much as `LOOSE` and `FLOOR` say. With rare samples it is a
    bound of its own, several times as large at times, and only stated.
    """
    second = recomputed_guarantee(event, distance, found.delta, LOOSE * found.epsilon + FLOOR, rdp_guarantee)
    steps = sum(part.steps for part in parts(event) if isinstance(part, PoissonGaussian))
    least = found.epsilon * (1.0 - ROUNDING) - _GRID * math.sqrt(steps)
    most = LOOSE * found.epsilon + FLOOR if _plain(event) else math.inf
    if not least <= second.epsilon <= most:
        raise IntegrityError(
            f"two accountants disagree about silo {silo}: ε = {found.epsilon:.6g} by {found.accountant}, and "
            f"{second.epsilon:.6g} by {second.accountant}, which should lie between {least:.6g} and {most:.6g}"
        )
    return second


def _plain(event: Event) -> bool:
    """Whether ε is exact: there is no sampling."""
    return gaussian_mu(event) is not None


def _like(stated: Event, planned: Event, slack: float) -> bool:
    """The same events in the same order, but for the last digits of σ."""
    pairs = list(zip(parts(stated), parts(planned), strict=False))
    return len(pairs) == len(parts(stated)) == len(parts(planned)) and all(_one_like(*pair, slack) for pair in pairs)


def _one_like(stated: Event, planned: Event, slack: float) -> bool:
    match stated, planned:
        case (Gaussian(), Gaussian()):
            return stated.releases == planned.releases and _near(stated.sigma, planned.sigma, slack)
        case (PoissonGaussian(), PoissonGaussian()):
            sampled = (stated.rate, stated.steps) == (planned.rate, planned.steps)
            return sampled and _near(stated.sigma, planned.sigma, slack)
        case (NonPrivate(), NonPrivate()):
            return True
    return False


def _near(stated: float, planned: float, slack: float) -> bool:
    return abs(stated - planned) <= slack * planned


def _fit(stated: Mapping[str, tuple[str, tuple[int, ...]]], planned: Mapping[str, ArrayType]) -> bool:
    return stated.keys() == planned.keys() and all(_array_fits(*stated[name], planned[name]) for name in planned)


def _array_fits(dtype: str, shape: tuple[int, ...], planned: ArrayType) -> bool:
    if dtype != planned.dtype or len(shape) != len(planned.shape):
        return False
    if planned.at_most:
        return shape[1:] == planned.shape[1:] and shape[0] <= planned.shape[0]
    return shape == planned.shape


def _arrays(stated: Mapping[str, tuple[str, tuple[int, ...]]], most: int = 20) -> str:
    named: Iterable[str] = (f"{name}: {dtype} {shape}" for name, (dtype, shape) in sorted(stated.items())[:most])
    return ", ".join([*named, *(["…"] if len(stated) > most else [])]) or "none"


def _words(guarantee: Guarantee) -> str:
    return f"ε = {guarantee.epsilon!r}, δ = {guarantee.delta!r} ({guarantee.accountant})"


def _told_apart(stated: Event, planned: Event) -> tuple[str, str]:
    """Both in words, with all digits where the words are the same."""
    words = describe(stated), describe(planned)
    return words if words[0] != words[1] else (repr(stated), repr(planned))
