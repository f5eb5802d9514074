"""From a paid request to the release that answers it: records are read, summed up, and privatised, once.

Neither key nor ledger is at hand here, so that this can happen in a process that has neither. Whoever has them asks
with an `Assignment`, compares the release with it (`Assignment.check`), and signs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from dpdd.client import holdout, local_synthesis
from dpdd.client.config import SiloSettings
from dpdd.client.mechanisms.base import mechanism
from dpdd.client.records import Records
from dpdd.client.records import load as load_records
from dpdd.common.cli import software
from dpdd.common.errors import IntegrityError
from dpdd.common.methods.plan import ArrayType, Plan
from dpdd.common.methods.registry import method, query
from dpdd.common.methods.request_plan import settings_of
from dpdd.common.privacy.entropy import Entropy, SeededEntropy, SystemEntropy
from dpdd.common.progress import Progress
from dpdd.common.wire.payment import Payment
from dpdd.common.wire.release import Release, release_of
from dpdd.common.wire.request import Kind, ReleaseRequest


@dataclass(frozen=True)
class Assignment:
    """A request that is paid for, and what it takes to answer it; `holdout_key` only where records are held out."""

    folder: Path
    settings: SiloSettings
    request: ReleaseRequest
    plan: Plan
    ledger_entry: str
    holdout_key: bytes | None = None
    payment: Payment | None = None

    @property
    def stated(self) -> Mapping[str, Any]:
        """What the release says beside its arrays and their event."""
        evaluation = self.request.kind is Kind.EVALUATION
        return {
            "silo": self.settings.name,
            "guarantee": self.plan.guarantee,
            "ledger_entry": self.ledger_entry,
            "payment": self.payment,
            "software": software(),
            "public_counts": self.settings.public_counts,
            "held_out": evaluation and self.settings.evaluation.holdout > 0.0,
        }

    def entropy(self) -> Entropy:
        """Where noise and samples come from."""
        simulation = self.settings.simulation
        if simulation is None or (simulation.noise_seed is None and not math.isinf(self.request.epsilon)):
            return SystemEntropy()
        return SeededEntropy(simulation.noise_seed or 0, f"{self.settings.name} {self.request.id}")

    def check(self, release: Release) -> None:
        """IntegrityError unless `release` is what was planned and paid for, and says so."""
        if release.event != self.plan.event or release.distance > self.plan.distance:
            raise IntegrityError("the mechanism ran another event than the one it planned; nothing was released")
        if self.entropy().releasable and not release.releasable:
            raise IntegrityError("noise or a sample came from another source than the silo's own; nothing was released")
        named = (release.request_id, release.method, release.kind)
        asked = (self.request.id, self.request.method, self.request.kind)
        if named != asked or any(getattr(release, name) != value for name, value in self.stated.items()):
            raise IntegrityError("the release states something else than what was asked and paid for; it stays here")
        planned = self.plan.array_types
        if release.arrays.keys() != planned.keys() or not all(
            _fits(array, planned[name]) for name, array in release.arrays.items()
        ):
            raise IntegrityError("the mechanism made other arrays than it planned; nothing was released")


def _fits(array: NDArray, planned: ArrayType) -> bool:
    """Whether an array is of the planned type; where there may be fewer rows, fewer will do."""
    few = planned.at_most and array.ndim > 0 and len(array) <= planned.shape[0]
    shape = (len(array), *planned.shape[1:]) if few else planned.shape
    return array.dtype == planned.dtype and array.shape == shape


def stays(request: ReleaseRequest) -> bool:
    """Whether a request is one of many stages, for which one worker may stay, and open the records once."""
    return request.kind is Kind.STATISTICS and _stages(request) > 1


def is_last(request: ReleaseRequest) -> bool:
    """Whether no stage comes after this one."""
    return request.stage + 1 >= _stages(request)


def _stages(request: ReleaseRequest) -> int:
    """How often the records are read for one reservation: for a finished set, all in one answer."""
    return query(request.method).stages(settings_of(request))


def opened_records(assignment: Assignment, progress: Progress) -> Records:
    """The records that an answer is made of; where there are several stages, they may keep embeddings for the next."""
    progress("reading", 0, 1)
    most = assignment.settings.worker.keep_embeddings if _stages(assignment.request) > 1 else 0
    records = load_records(assignment.settings.data, assignment.folder)
    if assignment.holdout_key is None:
        return records.keeping(most)
    share = assignment.settings.evaluation.holdout  # an evaluation reads the holdout, everything else the rest
    evaluation = assignment.request.kind is Kind.EVALUATION
    readable = holdout.readable(records, share, assignment.holdout_key, evaluation=evaluation, progress=progress)
    return readable.keeping(most)


def make(assignment: Assignment, progress: Progress, records: Records | None = None) -> Release:
    """Read the records, run the mechanism, and where a finished set was asked for make it of what that gave.

    `records` are those of the assignment, where they are open already.
    """
    request, entropy = assignment.request, assignment.entropy()
    settings = settings_of(request)
    if records is None:
        records = opened_records(assignment, progress)
    if request.kind is Kind.DISTILLED_SET:
        made_by = method(request.method)
        answered = local_synthesis.run_stages(records, request, made_by, settings, entropy, progress)
        del records
        privatised = local_synthesis.synthesise_locally(answered, request, made_by, settings, progress)
    else:
        half = mechanism(query(request.method))
        privatised = half.run(records, request, settings, assignment.plan, entropy, progress)
        del records
    return release_of(privatised, request, **assignment.stated)
