"""What a release of sums says about itself: which ones no silo with an honest program sends, whatever its records are.

Everything is compared with the noise of the *plan*, σ in every entry, and never with what the silo states. A record
adds a vector x of norm at most 1 to the sums, and w of it to the count of its class. So for a silo with n records

    |Y| = |Σ x + Z| ≤ n + |Z|,        count = w n + z.

*Tails.* The noise is a discrete Gaussian, whose tails are below those of the Gaussian with the same σ. Each bound fails
with probability at most p, where x = ln(1/p):

    z > σ √(2x)                                one number (and for -z)
    |Z|² > σ² (d + 2√(dx) + 2x)                a vector of d numbers (Laurent and Massart; Hsu, Kakade and Zhang)
    λ_min(S) < -σ (√(2D) + √(2x))              S = (Z + Zᵀ)/2 of a D x D matrix (E λ_max ≤ σ√(2D), and Lipschitz)

*Checks.* n is at most (counts + their noise) / w, of a class or of all, and then

- no count is below 0 by more than its noise;
- declared public counts agree with the noisy ones, and so do the counts of two stages of one run;
- a segment has at most norm r n + |Z|, where r is the part of norm 1 that a record may have in it;
- all rows of one class together likewise, with the count of that class;
- of an outer product of a vector with itself, M = Mᵀ: what is not symmetric is noise alone, and its energy is that of
  D(D-1)/2 numbers, no more and no less; and no eigenvalue is below 0 by more than the noise's.

*Draws.* Where records are sampled (`PoissonGaussian`), or several sums are released as one, rows come in draws, each a
sum of its own. A record is in `rate` x draws of them on average, and count / w x rate x draws says, up to noise, how
often records were in a draw, in all draws together. So Σ_t |Y_t| is at most that and √draws |Z|, whoever was sampled.
Sampling itself only matters where counts are compared: Bernstein's inequality bounds it.

A release of an honest silo fails any of this with probability at most `FALSE_ALARM`, which is shared out equally over
its checks. What passes may still be a lie: anything within the norms, such as sums with flipped signs or records that
do not exist, is a release that some records would give.

>>> round(norm_tail(10_000, 1e-7), 1), round(tail(1e-7), 1)
(104.1, 5.7)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpdd.common.privacy.clipping import FIXED_POINT_ONE, Layout, Segment
from dpdd.common.privacy.events import Event, Gaussian, PoissonGaussian, parts
from dpdd.common.privacy.privatise import in_units
from dpdd.common.wire.quantise import LARGEST, dequantise

Floats = NDArray[np.float64]

FALSE_ALARM = 1e-6
"""The probability that anything of an honest release is called implausible: all its checks together, at most."""

_LITTLE = 1e-4
"""The share of a count that is lost where contributions are put on the grid, and more."""


@dataclass(frozen=True)
class Design:
    """What everybody knows of a release before it is there: its layout, its noise, its samples, its classes.

    `weight` is what a record adds to the count of its class, None for a release without counts. A record is in `rate` ×
    `draws` draws on average.
    """

    layout: Layout
    weight: float | None
    sigma: float
    rate: float
    draws: int
    classes: tuple[str, ...]

    @classmethod
    def of(cls, layout: Layout, weight: float | None, event: Event, classes: tuple[str, ...]) -> Design | None:
        """The design under a planned event; None where there is no noise, or noise of several kinds."""
        match parts(event):
            case (Gaussian(sigma, releases),):
                return cls(layout, weight, sigma, 1.0, releases, classes)
            case (PoissonGaussian(sigma, rate, steps),):
                return cls(layout, weight, sigma, rate, steps, classes)
        return None

    @property
    def least_weight(self) -> float:
        """The count that a record adds at least: the grid rounds towards zero, and mechanisms compute in 32 bits."""
        assert self.weight is not None
        return max(self.weight * (1.0 - 1e-6) - self.rate * math.sqrt(self.draws) * 2.0 / FIXED_POINT_ONE, 1e-300)


@dataclass(frozen=True)
class Counts:
    """The noisy counts of one release, in records; `noise` is their standard deviation."""

    records: Floats
    noise: float
    rate: float
    draws: int


def tail(probability: float) -> float:
    """What a number of standard deviation 1 exceeds with at most this probability."""
    return math.sqrt(2.0 * math.log(1.0 / probability))


def norm_tail(numbers: int, probability: float) -> float:
    """What the norm of so many numbers of standard deviation 1 exceeds with at most this probability."""
    x = math.log(1.0 / probability)
    return math.sqrt(numbers + 2.0 * math.sqrt(numbers * x) + 2.0 * x)


def least_norm(numbers: int, probability: float) -> float:
    """What the norm of so many numbers of standard deviation 1 is below with at most this probability."""
    return math.sqrt(max(numbers - 2.0 * math.sqrt(numbers * math.log(1.0 / probability)), 0.0))


def noisy_counts(arrays: Mapping[str, NDArray], design: Design) -> Counts | None:
    """What a release says of the records of each class; None without counts."""
    sums = dequantise(arrays).get("count")
    if design.weight is None or sums is None:
        return None
    return Counts(in_units(sums)[:, 0] / design.weight, design.sigma / design.weight, design.rate, design.draws)


def implausible(
    arrays: Mapping[str, NDArray],
    design: Design,
    public_counts: Sequence[int] = (),
    first: Counts | None = None,
    alarm: float = FALSE_ALARM,
) -> list[str]:
    """What is wrong with a release, in sentences; none with probability 1 - `alarm` where the silo is honest.

    The arrays have the layout of the design. `first` are the counts of this silo's first stage.
    """
    counts = noisy_counts(arrays, design)
    if counts is None:
        return []  # nothing is known of how many records there are, and so of no norm
    whole = dequantise(arrays)
    sums = {name: in_units(array) for name, array in whole.items()}
    rounding = {name: _rounding(sums[name]) if arrays[name].dtype != np.int64 else 0.0 for name in whole}
    segments = [segment for segment in design.layout.segments if segment.name != "count"]
    if design.draws > 1:  # only rows that come in draws can be taken apart
        segments = [segment for segment in segments if _in_draws(segment, design.draws)]
    squares = [segment for segment in segments if segment.symmetric and segment.factors and segment.factors[0] > 1]
    checks = 3 + len(segments) + len(design.classes) + 2 * len(squares)
    p = alarm / checks
    return [
        *_negative(counts, design, p),
        *_different(counts, public_counts, design, p),
        *([] if first is None else _changed(counts, first, design, p)),
        *_too_long(sums, rounding, segments, design, p),
        *(sentence for segment in squares for sentence in _odd_matrix(sums[segment.name], segment, design.sigma, p)),
    ]


def _negative(counts: Counts, design: Design, p: float) -> Iterator[str]:
    label, bound = int(counts.records.argmin()), -counts.noise * tail(p / len(counts.records))
    if counts.records[label] < bound:
        yield (
            f"it counts {_number(counts.records[label])} records of {design.classes[label]}, and noise explains "
            f"{_number(bound)}"
        )


def _different(counts: Counts, public: Sequence[int], design: Design, p: float) -> Iterator[str]:
    """Noisy counts that are not those which the silo declares public."""
    if len(public) != len(counts.records):
        return
    declared, each = np.asarray(public, dtype=np.float64), p / (4 * len(public))
    room = counts.noise * tail(each) + _sampling(counts, declared, each) + _LITTLE * declared
    yield from _apart(counts, declared, room, "it declares {} public", design)


def _changed(counts: Counts, first: Counts, design: Design, p: float) -> Iterator[str]:
    """Noisy counts that are not those of the first stage, which was over the same records."""
    each = p / (4 * len(counts.records))
    noise = math.hypot(counts.noise, first.noise) * tail(each)
    most = np.maximum(np.maximum(counts.records, first.records), 1.0) + noise
    for _ in range(2):  # what sampling can hide of them, too
        most = most + _sampling(counts, most, each) + _sampling(first, most, each)
    room = noise + _sampling(counts, most, each) + _sampling(first, most, each) + _LITTLE * most
    yield from _apart(counts, first.records, room, "in its first stage it counted {}", design)


def _apart(counts: Counts, others: Floats, room: Floats, what: str, design: Design) -> Iterator[str]:
    label = int((np.abs(counts.records - others) / room).argmax())
    if abs(counts.records[label] - others[label]) > room[label]:
        yield (
            f"it counts {_number(counts.records[label])} records of {design.classes[label]}, "
            f"{what.format(_number(others[label]))}, and noise explains a difference of {_number(room[label])}"
        )


def _sampling(counts: Counts, records: Floats, p: float) -> Floats:
    """How far counts over samples of so many records are from these (Bernstein); 0 where nobody is sampled."""
    x, once = math.log(2.0 / p), 1.0 / (counts.rate * counts.draws)
    if counts.rate >= 1.0:
        return np.zeros_like(records)
    deviations: Floats = np.sqrt(2.0 * x * records * (1.0 - counts.rate) * once) + 2.0 * x * once / 3.0
    return deviations


def _too_long(
    sums: Mapping[str, Floats], rounding: Mapping[str, float], segments: Sequence[Segment], design: Design, p: float
) -> Iterator[str]:
    """Sums of a segment, or of a class, that are longer than the counts allow."""
    layout, draws = design.layout, design.draws
    appearances = sums["count"][:, 0] / design.least_weight * (design.rate * draws)
    unit = design.sigma / design.least_weight * (design.rate * draws)
    plain = 1.0 if draws > 1 else layout.plain_clip_norm / FIXED_POINT_ONE

    def times(rows: Sequence[tuple[str, Floats]], most: float) -> float:
        """How many times the norm, added up over draws, is what so many appearances and noise explain."""
        parts_of = [array.reshape(draws, -1) for _, array in rows]
        found = np.sqrt(sum(np.einsum("ij,ij->i", part, part) for part in parts_of)).sum()
        numbers = sum(part.size for part in parts_of)
        rounded = sum(
            rounding[name] * math.sqrt(part.size * draws) for (name, _), part in zip(rows, parts_of, strict=True)
        )
        bound = max(most, 0.0) + math.sqrt(draws) * design.sigma * norm_tail(numbers, p / 2) + rounded
        return float(found / bound)

    everybody = float(appearances.sum()) + unit * math.sqrt(len(appearances)) * tail(p / 2)
    for segment in segments:
        reach = segment.norm if segment.factors else plain
        beyond = times([(segment.name, sums[segment.name])], reach * everybody)
        if beyond > 1.0 + 1e-9:
            yield f"its sums {segment.name!r} are {beyond:.3g} times what the records that it counts and noise explain"
    for label, name in enumerate(design.classes):
        own = [(segment, _rows_of(segment, label, draws)) for segment in segments]
        rows = [(segment.name, sums[segment.name][numbers]) for segment, numbers in own if numbers]
        if not rows:
            continue
        beyond = times(rows, plain * (float(appearances[label]) + unit * tail(p / 2)))
        if beyond > 1.0 + 1e-9:
            yield f"its sums of {name} are {beyond:.3g} times what the records of it that it counts and noise explain"


def _in_draws(segment: Segment, draws: int) -> bool:
    """Whether each draw has as many rows as there are classes, one for each, draw after draw."""
    classes = len(segment.rows_of)
    wanted = tuple(tuple(range(label, draws * classes, classes)) for label in range(classes))
    return segment.rows == draws * classes and segment.rows_of == wanted


def _rows_of(segment: Segment, label: int, draws: int) -> list[int]:
    """The rows that only records of this class are added to, those of a draw after those of the one before."""
    others = {row for other, rows in enumerate(segment.rows_of) if other != label for row in rows}
    return [row for row in segment.rows_of[label] if row not in others]


def _rounding(sums: Floats) -> float:
    """What 16 bits can change of an entry: half a step, as an honest silo chooses it."""
    return 0.5 * (float(np.abs(sums).max(initial=0.0)) / (LARGEST - 1) + 2.0 / FIXED_POINT_ONE)


def _odd_matrix(sums: Floats, segment: Segment, sigma: float, p: float) -> Iterator[str]:
    """A matrix that is no sum of outer products of vectors with themselves, and noise."""
    assert segment.factors is not None
    size = segment.factors[0]
    matrix = sums.reshape(size, size)
    numbers = size * (size - 1) // 2
    found = float(np.linalg.norm(matrix - matrix.T)) / 2.0 / sigma
    if not least_norm(numbers, p / 2) <= found <= norm_tail(numbers, p / 2):
        times = found / math.sqrt(numbers)
        yield f"its matrix {segment.name!r} is {times:.3g} times as far from symmetric as noise makes it"
    bound = sigma * (math.sqrt(2.0 * size) + tail(p))
    shifted = (matrix + matrix.T) / 2.0
    shifted[np.diag_indices(size)] += bound
    try:
        np.linalg.cholesky(shifted)
    except np.linalg.LinAlgError:
        least = float(np.linalg.eigvalsh(shifted)[0]) - bound
        yield f"its matrix {segment.name!r} has the eigenvalue {least:.4g}, and noise explains {-bound:.4g}"


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) < 1e9 else f"{value:.3g}"


def implausible_set(
    labels: NDArray[np.int64],
    released: Floats | None,
    design: Design,
    public_counts: Sequence[int] = (),
    alarm: float = FALSE_ALARM,
) -> list[str]:
    """What is wrong with a distilled set, as far as its counts tell; `design` is that of the first stage behind it.

    A silo sends 0 for a class whose noisy count is not above twice its noise, and no image of it. Beyond that, and
    beyond counts that are public, nothing is known: any image may be the synthesis of some records.
    """
    if released is None or design.weight is None:
        return []
    found, noise = [], design.sigma / design.weight
    images = np.bincount(labels, minlength=len(design.classes))
    for label in np.flatnonzero((released == 0.0) & (images > 0))[:1]:
        found.append(
            f"it has images of {design.classes[label]}, and says that noise hides whether it has records of that"
        )
    for label in np.flatnonzero((released > 0.0) & (released < 2.0 * noise * (1.0 - 1e-5)))[:1]:
        found.append(
            f"it counts {_number(released[label])} records of {design.classes[label]}, and says nothing of so few: "
            f"noise hides {_number(2.0 * noise)}"
        )
    # Of a class that it says nothing of, it may have counted anything up to twice the noise.
    hidden = np.clip(np.asarray(public_counts, dtype=np.float64), 0.0, 2.0 * noise) if public_counts else released
    counts = Counts(np.where(released > 0.0, released, hidden), noise, design.rate, design.draws)
    return [*found, *_different(counts, public_counts, design, alarm)]
