"""Following noisy gradients as they come in: a step for each new one, as if all were gone through from the start.

What the next stage is asked with depends on all gradients so far. Whoever goes through hundreds of stages would begin
at the first one again for each; so the last descent of a thread is kept, with digests of the gradients it went along,
and a longer sequence that begins with the same ones goes on from its end.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.dp_kip.descent import Descent
from dpdd.common.methods.dp_kip.row_marginals import MARGINALS
from dpdd.common.methods.dp_kip.settings import GradientSettings
from dpdd.common.synthesis.statistics import Statistics

GRADIENT = "gradient"
"""The released sum."""
_Facts = tuple[Any, ...]


@dataclass(eq=False)
class _Path:
    """Support sets along gradients that were gone along; a gradient is known by its object, or else by its digest."""

    facts: _Facts
    descent: Descent
    supports: list[NDArray[np.float32]] = field(default_factory=list)
    seen: list[tuple[weakref.ref[Statistics], bytes]] = field(default_factory=list)

    def leads_to(self, statistics: Sequence[Statistics], facts: _Facts) -> bool:
        """Whether these statistics begin with the ones of this path."""
        return (
            facts == self.facts
            and len(self.seen) <= len(statistics)
            and all(
                reference() is each or digest == _digest(each)
                for (reference, digest), each in zip(self.seen, statistics, strict=False)
            )
        )


_latest = threading.local()


def followed(
    statistics: Sequence[Statistics], settings: GradientSettings, run: RunDescription
) -> list[NDArray[np.float32]]:
    """The support set after each step."""
    facts = (settings, run.classes, run.shape, run.public_seed, run.backbone_sha256, run.table)
    path: _Path | None = getattr(_latest, "path", None)
    if path is None or not path.leads_to(statistics, facts):
        path = _Path(facts, Descent.begin(settings, run))
    for each in statistics[len(path.seen) :]:
        path.descent = step(path.descent, each)
        path.supports.append(path.descent.support)
        path.seen.append((weakref.ref(each), _digest(each)))
    _latest.path = path
    return path.supports[:]


def step(descent: Descent, statistics: Statistics) -> Descent:
    """A step along the gradient of a round; and with its marginals, where they are released beside."""
    beside = statistics.sums.get(MARGINALS)
    after = descent.along(mean_gradient(statistics))
    return after if beside is None else after.with_marginals(beside / statistics.silos)


def mean_gradient(statistics: Statistics) -> NDArray[np.float64]:
    """The mean over the silos that answered: a round that somebody missed has the same scale as the others.

    Adam takes no notice of a scale that all steps share, but of one that changes between them.
    """
    mean: NDArray[np.float64] = statistics.sums[GRADIENT] / statistics.silos
    return mean


def _digest(statistics: Statistics) -> bytes:
    digest = hashlib.blake2b(np.ascontiguousarray(mean_gradient(statistics)).data, digest_size=16)
    if MARGINALS in statistics.sums:
        digest.update(np.ascontiguousarray(statistics.sums[MARGINALS] / statistics.silos).data)
    return digest.digest()
