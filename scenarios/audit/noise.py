"""The noise of every segment of a release: the release less its clean sum, in units of the σ that it states.

The silo is a simulated one, and what leaves its clean sums is noted on the way into the Gaussian mechanism. Everything
after that is as it is: encoding, signature, decoding. Where a method puts several sums below each other, or adds them
up and divides by the root of their number, the clean ones are put together likewise; any other segment is left out,
and named.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from dpdd.client.auditing.canaries import canaries, families
from dpdd.client.auditing.one_run import answers, statistics_request
from dpdd.client.auditing.scratch import scratch_silo
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.request_plan import plan_of
from dpdd.common.privacy.clipping import FIXED_POINT_ONE, ClippedSum
from dpdd.common.privacy.events import NonPrivate, parts
from dpdd.common.privacy.noise_tests import NoiseTest, noise_test
from dpdd.common.progress import Progress, silent
from dpdd.common.wire.request import ReleaseRequest

RECORDS = 20
"""In each silo: whose they are does not matter."""

Sums = list[dict[str, NDArray[np.float64]]]


@dataclass(frozen=True)
class SegmentNoise:
    """The test of one segment of one stage."""

    stage: int
    segment: str
    test: NoiseTest


def noise_of_segments(
    request: ReleaseRequest, releases: int, seed: int, stages: int | None = None, progress: Progress = silent
) -> tuple[list[SegmentNoise], list[str]]:
    """The tests of all segments, each over so many releases together, and the segments that are left out."""
    pooled: dict[tuple[int, str], list[NDArray[np.float64]]] = {}
    left_out: set[str] = set()
    for number in range(releases):
        progress("measuring noise", number, releases)
        found, unknown = residuals(request, seed + number, stages)
        for key, values in found.items():
            pooled.setdefault(key, []).append(values)
        left_out |= unknown
    progress("measuring noise", releases, releases)
    tests = [
        SegmentNoise(stage, name, noise_test(np.concatenate(values)))
        for (stage, name), values in sorted(pooled.items())
    ]
    return tests, sorted(left_out)


def residuals(
    request: ReleaseRequest, seed: int, stages: int | None = None
) -> tuple[dict[tuple[int, str], NDArray[np.float64]], set[str]]:
    """The noise of each stage and segment of one release, in units of σ; and segments whose clean sum is unknown."""
    request = statistics_request(request)
    run = RunDescription.of(request)
    features, labels = canaries(next(iter(families(run))), RECORDS, run, seed)
    with tempfile.TemporaryDirectory(prefix="dpdd-audit-") as scratch, _noted() as taken:
        silo = scratch_silo(Path(scratch) / "audit", request, features, labels, seed)
        released = answers(silo, request, stages)
    found: dict[tuple[int, str], NDArray[np.float64]] = {}
    unknown: set[str] = set()
    per_stage = len(taken) // len(released)
    start = 0
    for asked, statistics in released:
        events = [part for part in parts(plan_of(asked).event) if not isinstance(part, NonPrivate)]
        sums = sum(getattr(part, "steps", 0) or getattr(part, "releases", 0) for part in events)
        (sigma,) = {part.sigma for part in events}
        clean = together(taken[start : start + sums], {name: array.shape for name, array in statistics.sums.items()})
        start += sums
        for name, array in statistics.sums.items():
            if name in clean:
                found[asked.stage, name] = ((array - clean[name]) / sigma).ravel()
            else:
                unknown.add(f"{asked.stage} {name}")
    if start != len(taken):
        raise ValueError(f"{len(taken)} clean sums were privatised, and {start} planned ({per_stage} a stage)")
    return found, unknown


def together(
    sums: Sequence[Mapping[str, NDArray[np.float64]]], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, NDArray[np.float64]]:
    """Clean sums as a method puts several of them into one release, for the segments where it is known how."""
    found: dict[str, NDArray[np.float64]] = {}
    for name, shape in shapes.items():
        if not all(name in each for each in sums):
            continue
        each = [one[name] for one in sums]
        if len(each) == 1 and each[0].shape == shape:
            found[name] = each[0]
        elif (len(each) * len(each[0]), *each[0].shape[1:]) == shape:
            found[name] = np.concatenate(each)
        elif each[0].shape == shape and name == "count":
            found[name] = np.sum(each, axis=0) / len(each) ** 0.5
    return found


@contextmanager
def _noted() -> Iterator[Sums]:
    """Notes the clean sums that are privatised while it lasts, in units of the sensitivity."""
    taken: Sums = []

    def take(total: ClippedSum) -> dict[str, NDArray[np.int64]]:
        sums = original(total)
        taken.append({name: array / FIXED_POINT_ONE for name, array in sums.items()})
        return sums

    original = ClippedSum._take
    with mock.patch.object(ClippedSum, "_take", take):
        yield taken
