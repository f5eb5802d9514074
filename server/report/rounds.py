"""Who took part in which rounds: what a card says of it, and whether the releases lead where silos were asked.

>>> ranges([0, 1, 2, 5, 7, 8])
'1-3, 6, 8-9'
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from dpdd.common.errors import IntegrityError
from dpdd.common.methods.base import RunDescription
from dpdd.common.methods.registry import method
from dpdd.common.methods.request_plan import plan_of
from dpdd.common.wire.release import Release
from dpdd.common.wire.request import decode_request
from dpdd.server.aggregation.rules import aggregate
from dpdd.server.run.stage import Stage


def ranges(numbers: Iterable[int]) -> str:
    """Stages, counted from 0, as rounds, counted from 1."""
    runs = []
    for _, group in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in group]
        first, last = members[0] + 1, members[-1] + 1
        runs.append(str(first) if first == last else f"{first}-{last}")
    return ", ".join(runs)


def rounds_facts(stages: Sequence[Stage], dropouts: str | None) -> dict[str, Any]:
    """What `metrics.json` and the card say: the rule for silos that drop out, and in which rounds each took part."""
    took_part: dict[str, list[int]] = {}
    for number, stage in enumerate(stages):
        for release in stage.releases:
            took_part.setdefault(release.silo, []).append(number)
    return {
        "rounds": {
            "count": len(stages),
            "dropouts": dropouts or "wait",
            "took_part": {silo: ranges(took_part[silo]) for silo in sorted(took_part)},
        }
    }


def rounds_text(rounds: Mapping[str, Any]) -> str:
    """The same in words."""
    everything = ranges(range(rounds["count"]))
    always = [silo for silo, each in rounds["took_part"].items() if each == everything]
    others = [f"{silo} in {each}" for silo, each in rounds["took_part"].items() if each != everything]
    who = [f"{', '.join(always)} took part in all"] if always else []
    rule = "every round waited for all silos" if rounds["dropouts"] == "wait" else "silos that dropped out were skipped"
    return textwrap.fill(
        f"The sums came in {rounds['count']} rounds, and {rule}: {'; '.join([*who, *others])}.",
        width=110,
        break_on_hyphens=False,
    )


def check_rounds(
    card: Mapping[str, Any],
    released: Mapping[str, Sequence[Release]],
    requests: Mapping[str, bytes],
    read: Callable[[str, str], Release],
) -> bool:
    """Whether all requests are here, so that it could be checked that the rounds are those of the card.

    IntegrityError where they are not: where the card names others than the releases are of, or where the sums of the
    releases that it names do not lead to what the next round was asked with. `released` are the releases of each silo,
    whose arrays `read` gives for a silo and a request.
    """
    if any(release.request_id not in requests for releases in released.values() for release in releases):
        return False
    stage_of = {each: decode_request(data).stage for each, data in requests.items()}
    in_round: dict[int, list[tuple[str, str]]] = {}
    for silo, releases in released.items():
        stages = [stage_of[release.request_id] for release in releases]
        stated = card["rounds"]["took_part"].get(silo)
        if stated != ranges(stages):
            raise IntegrityError(f"the card has {silo} in rounds {stated}, and its releases are of {ranges(stages)}")
        for stage, release in zip(stages, releases, strict=True):
            in_round.setdefault(stage, []).append((silo, release.request_id))
    if set(card["rounds"]["took_part"]) != set(released) or sorted(in_round) != [*range(card["rounds"]["count"])]:
        raise IntegrityError("the card has other rounds than the releases that it names")
    state: Any = None
    leads_to: Mapping[str, Any] = {}
    for number, present in sorted(in_round.items()):
        asked = {request_id: decode_request(requests[request_id]) for _, request_id in present}
        for request in asked.values():
            given = request.stage_input
            if given.keys() != leads_to.keys() or not all(
                np.array_equal(given[name], leads_to[name]) for name in given
            ):
                raise IntegrityError(
                    f"round {number + 1} was asked with another input than the releases of the rounds before lead to"
                )
        request = next(iter(asked.values()))
        chosen, run = method(request.method), RunDescription.of(request)
        settings = chosen.settings(request.settings)
        releases = [read(silo, request_id).as_planned(plan_of(asked[request_id]).event) for silo, request_id in present]
        layout, weight = chosen.layout(settings, run, number), chosen.count_weight(settings, number)
        total = aggregate(sorted(releases, key=lambda each: each.silo), layout, card["aggregation"], weight)
        state, leads_to = chosen.advance(state, replace(total, stage_input=request.stage_input), settings, run)
    return True
