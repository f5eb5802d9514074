"""``dpdd-sim bench-noise``: how fast exact integer noise is drawn, beside OpenDP's exact discrete Gaussian.

Both samplers are cryptographically seeded and both draw discrete Gaussians; ours inverts a table of 128-bit
probabilities, OpenDP's rejects exactly, bit by bit. The figures are draws per second of processor time on one core,
OpenDP's through its Python interface.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

from dpdd.common.cli import Commands, print_json, table
from dpdd.common.errors import ConfigError
from dpdd.common.privacy import discrete_gaussian
from dpdd.common.privacy.entropy import SystemEntropy
from dpdd.scenarios.options import number

EXPONENTS = (10, 18, 20)
SECONDS_EACH = 2.0


@dataclass(frozen=True)
class Speed:
    """Draws per second at one scale."""

    scale_log2: int
    dpdd: float
    opendp: float

    @property
    def ratio(self) -> float:
        """How many draws of ours fit into one of OpenDP's."""
        return self.dpdd / self.opendp


def add_to(commands: Commands) -> None:
    """Register `bench-noise`."""
    parser = commands.add(
        "bench-noise",
        _run,
        "measure how fast noise is drawn, beside OpenDP's exact sampler",
        "Takes about 15 seconds. Needs the optional package opendp.",
    )
    parser.add_argument(
        "--seconds", type=_seconds, default=SECONDS_EACH, help="how long to draw, per sampler and scale (at most 2.5)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def measure(seconds: float) -> list[Speed]:
    """Draw with both samplers at every scale, for `seconds` each."""
    theirs = _opendp_sampler()
    speeds = []
    for exponent in EXPONENTS:
        scale = 2.0**exponent
        speeds.append(
            Speed(
                exponent,
                _per_second(_dpdd_sampler(scale), 1 << 18, seconds),
                _per_second(theirs(scale), 1 << 11, seconds),
            )
        )
    return speeds


def _run(options: argparse.Namespace) -> None:
    speeds = measure(options.seconds)
    if options.json:
        rows = [{"scale": 2**s.scale_log2, "dpdd": s.dpdd, "opendp": s.opendp, "ratio": s.ratio} for s in speeds]
        print_json({"unit": "draws per second of processor time, one core", "scales": rows})
        return
    print("Discrete Gaussian noise: draws per second of processor time, one core\n")
    print(
        table(
            ["scale", "dpdd", "OpenDP", "ratio"],
            [[f"2^{s.scale_log2}", f"{s.dpdd:,.0f}", f"{s.opendp:,.0f}", f"{s.ratio:,.0f}"] for s in speeds],
        )
    )
    distance = discrete_gaussian.sampler_distance(2.0 ** EXPONENTS[-1])
    print(
        f"\nOpenDP draws exactly. Our draws are within {distance:.0e} of that in total variation; the accounting "
        "counts it."
    )


def _dpdd_sampler(scale: float) -> Callable[[int], object]:
    return lambda count: discrete_gaussian.sample(scale, count, SystemEntropy())


def _opendp_sampler() -> Callable[[float], Callable[[int], object]]:
    try:
        import opendp.prelude as dp
    except ImportError:
        raise ConfigError("the comparison needs OpenDP, which is not installed: pip install 'dpdd[dev]'") from None
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)

    def at(scale: float) -> Callable[[int], object]:
        noise = space >> dp.m.then_gaussian(scale)
        return lambda count: noise([0] * count)

    return at


def _per_second(draw: Callable[[int], object], batch: int, seconds: float) -> float:
    """Draws per second of processor time over whole batches, after a small one that fills tables and caches."""
    draw(16)
    drawn, start, end = 0, time.process_time(), time.perf_counter() + seconds
    while drawn == 0 or time.perf_counter() < end:
        draw(batch)
        drawn += batch
    return drawn / max(time.process_time() - start, 1e-9)


def _seconds(text: str) -> float:
    return number(text, 0.0, 2.5, "a time above 0 and up to 2.5 seconds")
