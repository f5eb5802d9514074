"""A stage that silos answered: which releases are used, what is odd about them, the sums over silos, who moved them.

A release that cannot be used is always left out. One that can, and that no honest silo would send
(`dpdd.server.aggregation.plausibility`), is named; the scenario says whether it is left out, too. A silo that is left
out of a later stage stays in the sums of those before, which the others were asked with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dpdd.common.errors import DpddError
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.registry import method, query
from dpdd.common.methods.request_plan import images_made, plan_of
from dpdd.common.methods.verification import Expected, expected_of
from dpdd.common.privacy.clipping import Layout
from dpdd.common.synthesis.distilled_set import method_values
from dpdd.common.synthesis.priors import ClassCounts, released_counts
from dpdd.common.synthesis.statistics import Statistics
from dpdd.common.wire.release import Release
from dpdd.common.wire.request import Kind, ReleaseRequest
from dpdd.server.aggregation import influence
from dpdd.server.aggregation.influence import Influence
from dpdd.server.aggregation.plausibility import Counts, Design, implausible, implausible_set, noisy_counts
from dpdd.server.aggregation.rules import RULES, aggregate
from dpdd.server.aggregation.union import class_counts as union_counts
from dpdd.server.aggregation.union import opened, places
from dpdd.server.aggregation.usable import check_statistics, usable_releases
from dpdd.server.run.requests import RequestGroup
from dpdd.server.run.scenario import Scenario


@dataclass(frozen=True, eq=False)
class Stage:
    """What was asked in one stage, who released what and moved it, and the sums (None where silos sent sets)."""

    asked: Sequence[RequestGroup]
    releases: Sequence[Release]
    statistics: Statistics | None
    influence: Sequence[Influence] = ()


@dataclass
class Aggregation:
    """From releases to stages, with what was found on the way: who is `missing`, and implausible releases."""

    scenario: Scenario
    say: Callable[[str], None]
    missing: dict[str, str]
    findings: list[dict[str, Any]] = field(default_factory=list)
    _first: dict[tuple[str, str], Counts] = field(default_factory=dict)

    def stage(self, now: Sequence[RequestGroup], releases: Sequence[Release]) -> Stage:
        """A stage that was answered; DpddError where too few of the releases can be used."""
        request = now[0].request
        requests = {group.request.id: group.request for group in now}
        expected = {name: expected_of(each) for name, each in requests.items()}
        if request.kind is Kind.DISTILLED_SET:
            kept = self._usable(releases, expected, lambda release: opened(release, requests[release.request_id]))
            kept = self._plausible(kept, requests, self._odd_set)
            return Stage(now, kept, None, self._of_union(kept, request))
        chosen = query(request.method)
        settings = chosen.settings(request.settings)
        layout = chosen.layout(settings, RunDescription.of(request), request.stage)
        weight = chosen.count_weight(settings, request.stage)
        rule = self.scenario.aggregation.rule
        kept = self._usable(
            releases, expected, lambda release: check_statistics(release, layout, weight, len(releases))
        )
        kept = self._plausible(kept, requests, lambda release, asked: self._odd_sums(release, asked, layout, weight))
        total = aggregate(kept, layout, rule, weight)
        moved = influence.of_sums(kept, layout, weight, RULES[rule], total, request.classes)
        return Stage(now, kept, replace(total, stage_input=request.stage_input), moved)

    def _usable(
        self, releases: Sequence[Release], expected: Mapping[str, Expected], check: Callable[[Release], object]
    ) -> Sequence[Release]:
        """The releases that are what was asked for, and can be aggregated."""
        kept, unusable = usable_releases(releases, expected, check)
        return self._left(releases, kept, unusable, "can be used")

    def _plausible(
        self,
        releases: Sequence[Release],
        requests: dict[str, ReleaseRequest],
        odd: Callable[[Release, ReleaseRequest], list[str]],
    ) -> Sequence[Release]:
        """The releases that are aggregated: all, or with outliers = "drop" those that an honest silo may have sent."""
        drop, kept, left_out = self.scenario.aggregation.outliers == "drop", [], {}
        for release in releases:
            request = requests[release.request_id]
            found = odd(release, request)
            if found:
                finding = {"silo": release.silo, "stage": request.stage, "found": found, "left_out": drop}
                self.findings.append(finding)
                what = "sent what no honest silo would (implausible): " + "; ".join(found)
                if drop:
                    left_out[release.silo] = what
                else:
                    self.say(f"  {release.silo} {what}")
            if not (found and drop):
                kept.append(release)
        return self._left(releases, kept, left_out, "are plausible")

    def _left(
        self, releases: Sequence[Release], kept: Sequence[Release], without: Mapping[str, str], which: str
    ) -> Sequence[Release]:
        """`kept`, when silos of the others are named; DpddError when too few are left."""
        for silo, why in without.items():
            self.say(f"  without {silo}: {why}")
        self.missing.update(without)
        needed = min(self.scenario.exchange.quorum, len(releases))
        if without and len(kept) < max(needed, 1):
            reasons = "; ".join(f"{silo}: {why}" for silo, why in sorted(without.items()))
            raise DpddError(f"{len(kept)} of {len(releases)} releases {which}, and the quorum is {needed} ({reasons})")
        return kept

    def _odd_sums(self, release: Release, request: ReleaseRequest, layout: Layout, weight: float | None) -> list[str]:
        design = Design.of(layout, weight, plan_of(request).event, request.classes)
        if design is None:
            return []
        key = (request.first_stage().id, release.silo)
        found = implausible(release.arrays, design, release.public_counts, self._first.get(key))
        counts = noisy_counts(release.arrays, design)
        if counts is not None:
            self._first.setdefault(key, counts)
        return found

    def _odd_set(self, release: Release, request: ReleaseRequest) -> list[str]:
        first = replace(request, kind=Kind.STATISTICS, settings=method_values(request))
        chosen = method(request.method)
        settings = chosen.settings(first.settings)
        layout, weight = chosen.layout(settings, RunDescription.of(first), 0), chosen.count_weight(settings, 0)
        design = Design.of(layout, weight, plan_of(first).event, request.classes)
        if design is None:
            return []
        sent = opened(release, request)
        counts = None if sent.counts is None else sent.counts.astype(np.float64)
        return implausible_set(sent.dataset.labels, counts, design, release.public_counts)

    def _of_union(self, releases: Sequence[Release], request: ReleaseRequest) -> list[Influence]:
        images = self.scenario.synthesis.images_per_class * images_made(request)
        taken = places([opened(each, request) for each in releases], images)
        shares = influence.of_counts(taken.astype(np.float64), request.classes)
        return [Influence(release.silo, share) for release, share in zip(releases, shares, strict=True)]


def sums_of(stages: Sequence[Stage]) -> list[Statistics]:
    """The statistics of all stages, where silos released statistics."""
    return [stage.statistics for stage in stages if stage.statistics is not None]


def class_counts(stages: Sequence[Stage]) -> ClassCounts | None:
    """The noisy class counts that the releases of all stages have together; None where the method releases none."""
    request = stages[0].asked[0].request
    if request.kind is Kind.DISTILLED_SET:
        return union_counts([opened(release, request) for release in stages[0].releases])
    chosen = method(request.method)
    settings = chosen.settings(request.settings)
    return released_counts(sums_of(stages), [chosen.count_weight(settings, stage) for stage in range(len(stages))])


def lost_classes(counts: ClassCounts | None, classes: Sequence[str], silos: int) -> list[str]:
    """The classes whose counts are lost in noise; DpddError where that is all of them: there is nothing to synthesise.

    >>> lost_classes(ClassCounts(np.array([700.0, 30.0]), np.array([True, False]), noise=37.0), ("cat", "dog"), 3)
    ['dog']
    """
    if counts is None:
        return []
    if counts.known.any():
        return [name for name, known in zip(classes, counts.known, strict=True) if not known]
    of = f"{silos} silo{'s' if silos > 1 else ''}"
    if counts.noise > 0.0:
        said = (
            f"{of} together count from {counts.counts.min():.0f} to {counts.counts.max():.0f} records of a class, and "
            f"the noise in that is ±{counts.noise:.0f}"
        )
    else:  # sets come with the counts that are not lost
        said = f"none of {of} has a count above its own noise"
    raise DpddError(
        f"every class is lost in noise: {said}. A dataset would be made of noise alone, so there is none; the releases "
        "are kept. What helps: more silos (or records), a larger epsilon, or fewer classes"
    )
