"""The noise of every segment of every release, measured where it leaves: in the bytes that `Silo.answer` gives.

Clean sums are replaced by zeros on their way into the Gaussian mechanism, so that what comes out is noise alone, in
units of the σ that the release states. Its sum of squares is chi-square distributed; `ALARM` is the probability, per
segment, that true noise is taken for false.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpdd.common.privacy.events import NonPrivate, parts
from dpdd.common.wire.release import open_signed
from dpdd.server.aggregation.rules import aggregate
from tests.methods.harness import Case, answers, make_silo, watched
from tests.server.releases import as_asked

ALARM = 1e-11
"""Below 1e-9 for all the segments of all methods together."""


def released_noise(case: Case, folder: Path, records: int = 12) -> dict[str, NDArray[np.float64]]:
    """The noise of each stage and segment of a release, in units of the stated σ."""
    silo = make_silo(folder, case, records)
    with watched(range(records), empty=True):
        signed = answers(silo, case)
    noise = {}
    for request, data in signed:
        release = as_asked(open_signed(data, silo.public_key), request)
        sigmas = {part.sigma for part in parts(release.event) if not isinstance(part, NonPrivate)}
        (sigma,) = sigmas
        total = aggregate([release], case.entry.layout(case.values(), case.run, request.stage), "sum", None)
        for name, sums in total.sums.items():
            noise[f"{request.stage} {name}"] = np.asarray(sums, dtype=np.float64).ravel() / sigma
    return noise


def is_standard(noise: NDArray[np.float64], alarm: float = ALARM) -> bool:
    """Whether the numbers may be draws from a Gaussian with σ = 1, by their sum of squares and by their sum."""
    squares, count = float(np.square(noise).sum()), noise.size
    shift = 2.0 * stats.norm.sf(abs(float(noise.sum())) / count**0.5)
    return bool(min(stats.chi2.cdf(squares, count), stats.chi2.sf(squares, count), shift) > alarm / 3.0)


def check_noise(case: Case, folder: Path) -> None:
    """Every segment of every stage has the noise that the release states."""
    for name, noise in released_noise(case, folder / "north").items():
        assert is_standard(noise), f"segment {name!r} has noise of {np.sqrt(np.square(noise).mean()):.3g} times its σ"
