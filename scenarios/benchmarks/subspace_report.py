"""``dpdd-sim choose-dimensions``: how large a subspace should be; the public prediction beside what it really gives.

The prediction is the one that a coordinator picks `dimensions = "auto"` by: it knows the noise, a guess of how many
records there are, and auxiliary images. The measurement (the paper's theorem 1, and its figures 5 to 7) knows
everything: it computes the true class means of a named dataset under several random networks, and the error of noisy
ones, with real samples, real clipping and real noise. No silo would ever publish that; it is here to judge the rule.

Errors are squared distances in the space of a network's features, averaged over classes and networks, without views.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dpdd.common.cli import Commands, table
from dpdd.common.errors import ConfigError
from dpdd.common.privacy.accounting import LARGEST_EPSILON
from dpdd.common.progress import Console
from dpdd.scenarios.benchmarks.subspace_curves import Curve, plot

if TYPE_CHECKING:
    from dpdd.common.methods.matching.settings import MethodSettings

SEED = 0


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add(
        "choose-dimensions",
        _report,
        "show how the size of a subspace is picked, beside the error that every size really has",
        "The measured errors are for judging the rule, on public data: a silo would never publish them.",
    )
    parser.add_argument("--dataset", default="fashion-slice", help="what the error is measured on")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.2, 1.0, 10.0], metavar="E", help="budgets")
    parser.add_argument("--delta", type=float, default=1e-5, metavar="D", help="of each")
    parser.add_argument("--draws", type=int, metavar="N", help="noisy draws (default: the method's)")
    parser.add_argument("--rate", type=float, metavar="Q", help="of Poisson sampling (default: the method's)")
    parser.add_argument("--records-per-class", type=int, metavar="N", help="the public guess (default: the method's)")
    parser.add_argument("--auxiliary-images", type=int, metavar="N", help="dead leaves (default: the method's)")
    parser.add_argument("--width", type=int, metavar="N", help="of the networks (default: the method's)")
    parser.add_argument("--networks", type=int, default=2, metavar="N", help="that the error is measured with")
    parser.add_argument("--trials", type=int, default=4, metavar="N", help="samples per network and size")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the curves as well")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def _report(options: argparse.Namespace) -> None:
    from dpdd.common.config import validate
    from dpdd.common.methods.matching.settings import MethodSettings
    from dpdd.scenarios.benchmarks.subspace_errors import curves

    names = ("draws", "rate", "records_per_class", "auxiliary_images", "width")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    settings = validate(given, MethodSettings, "options")
    for epsilon in options.epsilon:
        if not 0.0 < epsilon <= LARGEST_EPSILON:
            raise ConfigError(f"epsilon lies in (0, {LARGEST_EPSILON:g}], not {epsilon:g}")
    console = Console(quiet=options.quiet)
    budgets = [(epsilon, options.delta) for epsilon in options.epsilon]
    measured = curves(options.dataset, settings, budgets, options.networks, options.trials, SEED, console)
    print("\n".join(_lines(options, settings, measured)))
    if options.svg:
        options.svg.write_text(plot(f"{options.dataset}: squared error of a class mean", measured))


def _lines(options: argparse.Namespace, settings: MethodSettings, curves: Sequence[Curve]) -> Iterator[str]:
    yield "The squared error of a class mean by the size d of the subspace. Predictions involve no record; measurements"
    yield f"are on {options.dataset}, for judging the rule: no silo would publish them."
    yield (
        f"{settings.draws} draws at rate {settings.rate:g}, δ = {options.delta:g}, networks of width {settings.width}, "
        f"{settings.auxiliary_images} dead leaves,"
    )
    yield (
        f"a guess of {settings.records_per_class} records per class; "
        f"networks: {options.networks}, trials: {options.trials}"
    )
    yield ""
    header, rows = ["d"], [[str(size)] for size in curves[0].sizes] + [["no subspace"]]
    for curve in curves:
        header += [f"ε = {curve.epsilon:g}: predicted", "measured"]
        pairs = zip(curve.predicted, curve.measured, strict=True)
        for row, pair in zip(rows, [*pairs, (None, curve.plain)], strict=True):
            row += ["–" if error is None else f"{error:.2f}" for error in pair]
    yield table(header, rows)
    yield ""
    yield table(
        ["ε", "σ of a draw", "picked d", "its measured error", "measured best d", "its error"],
        [
            [
                f"{curve.epsilon:g}",
                f"{curve.sigma:.3f}",
                str(curve.picked),
                f"{curve.measured_at(curve.picked):.2f}",
                str(curve.measured_best),
                f"{min(curve.measured):.2f}",
            ]
            for curve in curves
        ],
    )
