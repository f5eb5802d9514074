"""``dpdd-sim account``: how much noise a budget needs, or what a given noise costs, without any data.

Both accountants answer: the one that dpdd relies on (exact for plain Gaussians, a privacy-loss distribution where
records are sampled), and Rényi accounting, which most papers print and which asks for more noise.
"""

from __future__ import annotations

import argparse
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpdd.common.cli import Commands, print_json, table
from dpdd.common.errors import ConfigError
from dpdd.common.privacy.accounting import (
    LARGEST_EPSILON,
    RDP,
    calibrate,
    gaussian_releases,
    guarantee,
    poisson_steps,
    rdp_guarantee,
)
from dpdd.common.privacy.events import NEIGHBOURS, Event
from dpdd.scenarios.options import number, rounded_up, whole_number

HOPELESS = 150.0
"""Above this Rényi ε the exact figure is not computed: it takes minutes, and protects nobody either way."""


@dataclass(frozen=True)
class Mechanism:
    """What is asked about: σ ↦ event, and how to say it."""

    words: str
    event_of: Callable[[float], Event]
    settings: dict[str, Any]


def add_to(commands: Commands) -> None:
    """Register `account` with its two mechanisms."""
    parser = commands.add(
        "account",
        _run,
        "say how much noise a privacy budget needs, or what a given noise costs",
        "No data is read. With --epsilon the answer is the noise multiplier, with --sigma it is epsilon.",
    )
    kinds = parser.add_subparsers(title="mechanisms", metavar="MECHANISM", required=True)

    gaussian = _add(kinds, "gaussian", _gaussian, "Gaussian noise on sums over all records, once or several times")
    gaussian.add_argument(
        "--releases", type=whole_number, default=1, metavar="M", help="releases over the same records; 1 if not given"
    )

    poisson = _add(kinds, "poisson", _poisson, "Gaussian noise on sums over randomly sampled records, as in DP-SGD")
    poisson.add_argument(
        "--rate", type=_rate, required=True, metavar="Q", help="sampling probability, such as 0.01 or 50/6000"
    )
    poisson.add_argument("--steps", type=whole_number, required=True, metavar="T", help="how often records are sampled")


def _add(
    kinds: Any, name: str, mechanism: Callable[[argparse.Namespace], Mechanism], summary: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = kinds.add_parser(name, help=summary, description=f"{summary}.")
    known = parser.add_mutually_exclusive_group(required=True)
    known.add_argument(
        "--epsilon", type=_epsilon, metavar="E", help=f"the budget, up to {LARGEST_EPSILON:g}: prints sigma"
    )
    known.add_argument("--sigma", type=_sigma, metavar="S", help="noise multiplier (noise / clip norm): prints epsilon")
    parser.add_argument(
        "--delta", type=_delta, default=1e-5, metavar="D", help="far below 1 / the number of records; 1e-5 if not given"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    # `account --debug gaussian` has set it already: a default of False here would take that back.
    parser.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error"
    )
    parser.set_defaults(mechanism=mechanism)
    return parser


def _gaussian(options: argparse.Namespace) -> Mechanism:
    times = "one release" if options.releases == 1 else f"{options.releases:,} releases over the same records"
    return Mechanism(f"Gaussian noise, {times}", gaussian_releases(options.releases), {"releases": options.releases})


def _poisson(options: argparse.Namespace) -> Mechanism:
    sampled = -math.expm1(options.steps * math.log1p(-options.rate)) if options.rate < 1.0 else 1.0
    if sampled <= options.delta:
        raise ConfigError(
            f"at rate {options.rate:g} a record is sampled at all with probability {sampled:.2g}, which delta "
            f"({options.delta:g}) already covers, so that any noise would do; choose a smaller --delta"
        )
    steps = f"{options.steps:,} step{'' if options.steps == 1 else 's'}"
    return Mechanism(
        f"Gaussian noise, Poisson sampling at rate {options.rate:.6g}, {steps}",
        poisson_steps(options.rate, options.steps),
        {"rate": options.rate, "steps": options.steps},
    )


def _run(options: argparse.Namespace) -> None:
    # The Rényi accountant warns of every order it leaves out; leaving orders out only raises its bound.
    logging.getLogger("absl").setLevel(logging.ERROR)
    mechanism: Mechanism = options.mechanism(options)
    try:
        if options.sigma is None:
            _noise_for(mechanism, options.epsilon, options.delta, as_json=options.json)
        else:
            _cost_of(mechanism, options.sigma, options.delta, as_json=options.json)
    except ValueError as error:
        raise ConfigError(f"{error}") from error


def _noise_for(mechanism: Mechanism, epsilon: float, delta: float, *, as_json: bool) -> None:
    sigma = calibrate(mechanism.event_of, epsilon, delta)
    accountant = guarantee(mechanism.event_of(sigma), delta).accountant
    sigma_rdp = _calibrate_rdp(mechanism, epsilon, delta)
    if as_json:
        _print(mechanism, sigma, epsilon, delta, accountant, {"sigma_rdp": sigma_rdp})
        return
    print(f"{mechanism.words}: what makes it ({epsilon:g}, {delta:g})-private\n")
    rows = [[accountant, rounded_up(sigma)], [RDP, rounded_up(sigma_rdp) if sigma_rdp is not None else "∞"]]
    print(table(["accountant", "noise multiplier σ"], rows))
    print(f"\nAdd noise of standard deviation {rounded_up(sigma)} × the clip norm.\n{_meaning(epsilon, delta)}")
    if sigma_rdp is not None and sigma_rdp > sigma:
        print(f"Rényi accounting, which papers often use, would ask for {sigma_rdp / sigma - 1:.1%} more noise.")
    print(f"Neighbours: {NEIGHBOURS}.")


def _cost_of(mechanism: Mechanism, sigma: float, delta: float, *, as_json: bool) -> None:
    event = mechanism.event_of(sigma)
    renyi = rdp_guarantee(event, delta)
    exact = renyi
    if renyi.epsilon <= HOPELESS or "releases" in mechanism.settings:
        exact = guarantee(event, delta)
    if as_json:
        _print(mechanism, sigma, exact.epsilon, delta, exact.accountant, {"epsilon_rdp": renyi.epsilon})
        return
    print(f"{mechanism.words}: what a noise multiplier of σ = {sigma:g} costs at δ = {delta:g}\n")
    rows = [[exact.accountant, rounded_up(exact.epsilon)]] if exact is not renyi else []
    print(table(["accountant", "ε"], [*rows, [renyi.accountant, rounded_up(renyi.epsilon)]]))
    print(f"\n{_meaning(exact.epsilon, delta)}")
    print(f"Neighbours: {NEIGHBOURS}.")


def _calibrate_rdp(mechanism: Mechanism, epsilon: float, delta: float) -> float | None:
    """None where no noise satisfies any of the Rényi orders: tiny budgets."""
    try:
        sigma: float = calibrate(mechanism.event_of, epsilon, delta, rdp_guarantee)
    except ValueError:
        return None
    return sigma


def _print(
    mechanism: Mechanism, sigma: float, epsilon: float, delta: float, accountant: str, renyi: dict[str, Any]
) -> None:
    figures = {"sigma": sigma, "epsilon": epsilon, "delta": delta, "accountant": accountant}
    print_json({**figures, **renyi, **mechanism.settings, "neighbours": NEIGHBOURS})


def _meaning(epsilon: float, delta: float) -> str:
    if epsilon > LARGEST_EPSILON:
        return f"Such a budget protects nobody: dpdd releases nothing above ε = {LARGEST_EPSILON:g}."
    return (
        f"Any outcome is then at most e^ε = {math.exp(epsilon):.3g} times as likely with a person's record as without "
        f"it,\nbut for a probability of δ = {delta:g}."
    )


def _epsilon(text: str) -> float:
    return number(text, 0.0, LARGEST_EPSILON, "a budget epsilon lies above 0 and goes up to 32")


def _sigma(text: str) -> float:
    return number(text, 0.0, 1e15, "a noise multiplier is a number above 0, such as 1.5")


def _delta(text: str) -> float:
    return number(text, 0.0, 0.999999, "a delta lies between 0 and 1, such as 1e-5")


def _rate(text: str) -> float:
    rule = "a sampling rate lies above 0 and goes up to 1, such as 0.01 or 50/6000"
    above, slash, below = text.partition("/")
    try:
        value = float(above) / float(below) if slash else float(above)
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(f"{rule}, not {text!r}") from None
    return number(repr(value), 0.0, 1.0, rule, shown=text)
