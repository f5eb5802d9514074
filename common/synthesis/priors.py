"""Class priors: the shares of the classes that labels, teacher and learners assume, where a coordinator declares some.

`as-released` are the shares of the noisy counts, `equal` is one share for all, and a table gives each class its own.
Nothing declared leaves everything as the method fits it. Priors are post-processing: they cost nothing, and may change
at any time.

Nobody can be asked to recognise a class that is lost in noise. Whatever is declared for it, it has the share of one
record, and the others have the rest.

>>> shares("equal", ("cat", "dog")).tolist(), shares({"dog": 0.1, "cat": 0.9}, ("cat", "dog")).tolist()
([0.5, 0.5], [0.9, 0.1])
>>> shares("as-released", ("cat", "dog"), ClassCounts(np.array([700.0, 100.0]), np.array([True, True]))).tolist()
[0.875, 0.125]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator

from dpdd.common.errors import ConfigError

if TYPE_CHECKING:
    from dpdd.common.synthesis.statistics import Statistics

AS_RELEASED: Literal["as-released"] = "as-released"
EQUAL: Literal["equal"] = "equal"
NO_COUNTS = "the releases have no class counts: declare equal priors, or give them"


def _declared(value: Any) -> Any:
    """The value, if it declares priors; ValueError in one sentence otherwise."""
    if value in (None, AS_RELEASED, EQUAL):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f'priors are "{AS_RELEASED}", "{EQUAL}", or a table with the share of every class')
    for name, share in value.items():
        number = isinstance(share, int | float) and not isinstance(share, bool)
        if not number or not 0.0 < share <= 1.0:
            raise ValueError(f"the prior of {name} is a share above 0 and up to 1, not {share!r}")
    total = math.fsum(value.values())
    if abs(total - 1.0) > 1e-6:
        raise ValueError(f"the priors add up to {total:g}, not to 1")
    return {str(name): float(share) for name, share in value.items()}


Priors = Annotated[Literal["as-released", "equal"] | dict[str, float], BeforeValidator(_declared)]
"""What may be declared."""


@dataclass(frozen=True, eq=False)
class ClassCounts:
    """Noisy records of each class, and which of the counts stand out of their `noise` (a standard deviation)."""

    counts: NDArray[np.float64]
    known: NDArray[np.bool_]
    noise: float = 0.0

    @property
    def unequal(self) -> bool:
        """Whether the largest class surely has more than twice the records of the smallest that is known.

        >>> [ClassCounts(np.array([700.0, few]), np.ones(2, bool), noise=37.0).unequal for few in (100.0, 300.0)]
        [True, False]
        """
        known = self.counts[self.known]
        return len(known) > 1 and bool(known.max() - 2.0 * self.noise > 2.0 * (known.min() + 2.0 * self.noise))

    def in_words(self, classes: Sequence[str]) -> str:
        """The smallest and the largest that are known.

        >>> ClassCounts(np.array([700.2, 3.0, 99.6]), np.array([True, False, True])).in_words(("cat", "emu", "dog"))
        'from 100 (dog) to 700 (cat)'
        """
        ordered = [label for label in np.argsort(self.counts, kind="stable") if self.known[label]]
        few, many = ordered[0], ordered[-1]
        return f"from {self.counts[few]:.0f} ({classes[few]}) to {self.counts[many]:.0f} ({classes[many]})"


def released_counts(statistics: Sequence[Statistics], weights: Sequence[float | None]) -> ClassCounts | None:
    """What all stages say of the class counts, each by its precision; a record weighs `weights[stage]` in them.

    Every stage counts the same records with noise of its own, so together they know more than the first alone. A stage
    of weight None has no counts, and where none has, there is nothing to say.
    """
    counted = [(stage, weight) for stage, weight in zip(statistics, weights, strict=True) if weight is not None]
    if not counted:
        return None
    counts = np.stack([stage.sums["count"][:, 0] / weight for stage, weight in counted])
    noise = np.array([stage.noise / weight for stage, weight in counted])
    if not noise.all():
        return ClassCounts(counts[noise.argmin()], counts[noise.argmin()] > 0.0)
    precision = noise**-2.0
    together, left = precision @ counts / precision.sum(), 1.0 / math.sqrt(precision.sum())
    return ClassCounts(together, together > 2.0 * left, left)


def checked(priors: Any, classes: Sequence[str], *, counted: bool = True) -> Priors | None:
    """What is declared; ConfigError unless it can be declared of these classes, with class `counted` or not."""
    try:
        priors = _declared(priors)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if priors == AS_RELEASED and not counted:
        raise ConfigError(NO_COUNTS)
    odd = sorted(set(classes) ^ set(priors)) if isinstance(priors, dict) else []
    if odd:
        why = "has none" if odd[0] in classes else "is no class"
        raise ConfigError(
            f"priors give every class a share, and {odd[0]!r} {why}; the classes are {', '.join(classes)}"
        )
    return cast("Priors | None", priors)


def shares(priors: Priors, classes: Sequence[str], counts: ClassCounts | None = None) -> NDArray[np.float64]:
    """The share that every one of `classes` is assumed to have; they add up to 1.

    Given priors may be of more classes than these: then they are those among these.
    """
    if counts is None and priors == AS_RELEASED:
        raise ConfigError(NO_COUNTS)
    if isinstance(priors, dict):
        wanted = np.array([priors[name] for name in classes])
    elif priors == EQUAL or counts is None:
        wanted = np.ones(len(classes))
    else:
        wanted = np.maximum(counts.counts, 1.0)
    if counts is None or counts.known.all() or not counts.known.any():
        return wanted / wanted.sum()
    known = np.where(counts.known, wanted, 0.0)
    one_record = 1.0 / max(counts.counts[counts.known].sum(), 2.0)
    found = np.where(counts.known, known / known.sum(), one_record)
    return found / found.sum()


def log_shift(before: NDArray[np.float64], after: NDArray[np.float64]) -> NDArray[np.float64]:
    """What log probabilities under the shares `before` need to be those under `after`, up to a constant.

    >>> log_shift(np.array([0.9, 0.1]), np.array([0.5, 0.5])).round(3).tolist()
    [-0.588, 1.609]
    """
    shift: NDArray[np.float64] = np.log(after) - np.log(before)
    return shift
