"""Methods in rounds (`Query.rounds`): many stages, each asked with what the sums so far lead to, and closed for good.

When a round is closed, the store keeps whose releases were added up in it, durably and before the next round is asked.
So a run that goes on, and whoever makes the dataset anew, takes the same steps from the releases that were kept; a
release that comes after its round was closed is kept, and not used.

What is done about silos that drop out (`exchange.dropouts`): by `wait` a round is closed when all have answered, and
by `skip` also after a time limit, with those who have. A silo that was skipped is asked in every round, and no round
waits for it, until anything comes from it; from the next round on it is waited for as before. It cannot make up for a
round: of that, its request is not sent any more.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from dpdd.common import flower as _flower  # noqa: F401  (first: it turns Flower's telemetry off)

# isort: split
from flwr.serverapp import Grid

from dpdd.common.errors import DpddError, IntegrityError
from dpdd.common.methods.base import Query, RunDescription
from dpdd.common.methods.registry import method
from dpdd.common.wire.release import Release
from dpdd.server.aggregation.rules import aggregate
from dpdd.server.run.asking import Asking
from dpdd.server.run.exchange_section import ROUND_MINUTES
from dpdd.server.run.requests import RequestGroup, asked_stage_input, stage_request_groups
from dpdd.server.run.stage import Stage
from dpdd.server.run.store import Store

if TYPE_CHECKING:
    from dpdd.server.run.pipeline import Run

ROUNDS = "rounds"
PAUSES = (2.0, 5.0, 15.0, 60.0)
"""Seconds before a silo that could not answer is asked once more, and once more."""
_REMEMBERED = 8


def waits_for(what: str, trouble: Mapping[str, str]) -> DpddError:
    """The error of a run that goes on without nobody."""
    reasons = "; ".join(f"{silo}: {why}" for silo, why in sorted(trouble.items()))
    return DpddError(f"{what} waits for silos ({reasons}); nothing is lost: `dpdd-server resume` goes on from here")


def closed_by_hand(
    store: Store, now: Sequence[RequestGroup], releases: Sequence[Release], chosen: Query[Any]
) -> Sequence[Release]:
    """The releases of a stage after which somebody asks for the next one; a round that is open is closed with them."""
    if not chosen.rounds:
        return releases
    kept = [store.took_part(group.request.id) for group in now]
    if all(silos is None for silos in kept):
        here = {group.request.id: [r.silo for r in releases if r.request_id == group.request.id] for group in now}
        store.close_round(here)
        return releases
    used = {(group.request.id, silo) for group, silos in zip(now, kept, strict=True) for silo in silos or ()}
    return [release for release in releases if (release.request_id, release.silo) in used]


class Rounds:
    """The rounds of one run on a grid; `asked` are the requests of the first."""

    def __init__(self, run: Run, grid: Grid, asked: Sequence[RequestGroup], store: Store) -> None:
        request = asked[0].request
        self._run, self._grid, self._asked, self._store = run, grid, asked, store
        self._method = method(request.method)
        self._settings = self._method.settings(request.settings)
        self._description = RunDescription.of(request)
        exchange = run.scenario.exchange
        self._skip, self._quorum = exchange.dropouts == "skip", exchange.quorum
        self._limit = 60.0 * (exchange.round_minutes or ROUND_MINUTES) if self._skip else None
        self._deadline = 60.0 * exchange.deadline_minutes
        self._absent: dict[str, deque[str]] = {}  # who was skipped, and requests that they did not answer in time
        self._going_on = self._said = False

    def gather(self, count: int) -> list[Stage]:
        """Go through all rounds, those that are closed already without asking anybody; one stage for each."""
        stages: list[Stage] = []
        state, stage_input = None, dict[str, NDArray]()
        for number in range(count):
            now = self._requests(number, stage_input)
            took_part = self._closed(now)
            if took_part is None:
                if stages and not self._said:
                    self._run.console.say(f"  round {number + 1} of {count}")
                self._said = True
                self._check_as_asked(number, now)
                self._note_returned()
                took_part = self._ask(number, count, now)
                self._store.close_round(took_part)
            self._note_absent(now, took_part)
            with self._run.timed("synthesis"):
                stage = self._run.aggregation.stage(now, self._releases(number, took_part))
            assert stage.statistics is not None
            with self._run.timed("synthesis"):
                state, asked = self._method.advance(state, stage.statistics, self._settings, self._description)
            stage_input = dict(asked)
            stages.append(self._without_arrays(stage))
            self._run.console(ROUNDS, number + 1, count, f"round {number + 1} of {count}")
        self._run.console.finish()
        for stage in stages:  # who came late is not missing
            for release in stage.releases:
                self._run.missing.pop(release.silo, None)
        return stages

    def _requests(self, number: int, stage_input: Mapping[str, NDArray]) -> Sequence[RequestGroup]:
        """What is asked in a round: of everybody who has answered the first, in time or not."""
        if number == 0:
            return self._asked
        members = {silo for here in self._here(self._asked).values() for silo in here}
        return stage_request_groups(self._asked, number, stage_input, members)

    def _here(self, now: Sequence[RequestGroup]) -> dict[str, list[str]]:
        """The silos whose release is in the store, for each request."""
        known = self._run.roster.keys
        return {
            group.request.id: [s for s in self._store.digests(group.request.id) if s in group.silos and s in known]
            for group in now
        }

    def _closed(self, now: Sequence[RequestGroup]) -> dict[str, list[str]] | None:
        """Who took part in a round that is closed, for each request; None where it is open."""
        kept = {group.request.id: self._store.took_part(group.request.id) for group in now}
        closed = {request_id: silos for request_id, silos in kept.items() if silos is not None}
        return closed or None

    def _check_as_asked(self, number: int, now: Sequence[RequestGroup]) -> None:
        """IntegrityError where silos were asked for this round with another input than the closed ones lead to."""
        if self._going_on or any(self._store.request(group.request.id) is not None for group in now):
            return
        self._going_on = True  # from here on it is this process that asks
        if number and asked_stage_input(self._store.requests(), self._asked, number) is not None:
            raise IntegrityError(
                f"round {number + 1} was asked with another input than the releases of the rounds before lead to; have "
                "[aggregation] or the software changed since? With what it was started with the run goes on"
            )

    def _ask(self, number: int, count: int, now: Sequence[RequestGroup]) -> dict[str, list[str]]:
        """Ask until the round can be closed; who took part in it."""
        if number == 0 and not self._skip:  # who does not answer it is none of those who are waited for
            self._run.answers(self._grid, now, self._store)
            return self._here(now)
        self._run.console(ROUNDS, number, count, f"round {number + 1} of {count}")
        ends, pauses = time.monotonic() + self._deadline, iter(PAUSES)
        while True:
            missing = self._missing(now)
            awaited = [_of(group, group.silos - self._absent.keys()) for group in missing]
            if not missing or (self._skip and not any(group.silos for group in awaited) and self._enough(now)):
                return self._here(now)
            trouble, failed, late = self._round_trip(now, missing, ends)
            missing = self._missing(now)
            if not missing or (self._skip and self._asks_anybody and self._enough(now)):
                if number == 0:
                    self._tell_missing(missing, trouble)
                return self._here(now)
            left = {silo for group in missing for silo in group.silos}
            hopeless = not left & (failed | late) if self._skip else bool(left - failed)
            if time.monotonic() >= ends or not self._may_change or hopeless:
                what = f"round {number + 1} of {count}"
                raise waits_for(what, {silo: trouble.get(silo, "did not answer") for silo in left})
            if not late:  # else there was a pause enough
                time.sleep(min(next(pauses, PAUSES[-1]), max(ends - time.monotonic(), 0.0)))

    def _round_trip(
        self, now: Sequence[RequestGroup], missing: Sequence[RequestGroup], ends: float
    ) -> tuple[dict[str, str], set[str], set[str]]:
        """Ask those who are missing, and wait for those of them who are not absent; who is in trouble, and who of them
        could not answer, or did not in time."""
        run, grid = self._run, self._grid
        if not self._asks_anybody:
            return {silo: "was not asked" for group in missing for silo in group.silos}, set(), set()
        for group in now:  # what nobody was asked with may still change
            self._store.add_request(group.request.id, group.request.encode())
        present = [_of(group, group.silos - self._absent.keys()) for group in missing]
        if not any(group.silos for group in present):
            present = list(missing)  # nobody is left: any of them will do
        absent = [_of(group, group.silos - here.silos) for group, here in zip(missing, present, strict=True)]
        waiting, others = (
            Asking(grid, [group for group in groups if group.silos], self._store, run.roster, run.left_out)
            for groups in (present, absent)
        )
        with run.timed("releases"):
            pushed = list(grid.push_messages(others.messages))
            timeout = self._limit if self._limit is None else min(self._limit, max(ends - time.monotonic(), 0.0))
            for reply in grid.send_and_receive(waiting.messages, timeout=timeout):
                waiting.take(reply)
            for reply in grid.pull_messages(pushed):
                others.take(reply)
        return {**others.trouble, **waiting.trouble}, waiting.failed | others.failed, waiting.late

    def _tell_missing(self, missing: Sequence[RequestGroup], trouble: Mapping[str, str]) -> None:
        """Name those without whom the first round is closed; they are missing until they come."""
        for silo in sorted(silo for group in missing for silo in group.silos):
            self._run.missing[silo] = trouble.get(silo, "did not answer")
            self._run.console.say(f"  without {silo}: {self._run.missing[silo]}")

    @property
    def _asks_anybody(self) -> bool:
        return bool(list(self._grid.get_node_ids()))

    @property
    def _may_change(self) -> bool:
        """Whether silos come and go, as they do over the exchange: in a simulation who failed fails again."""
        return self._asks_anybody and hasattr(self._grid, "withdraw")

    def _missing(self, now: Sequence[RequestGroup]) -> list[RequestGroup]:
        here = self._here(now)
        groups = [_of(group, group.silos - set(here[group.request.id])) for group in now]
        return [group for group in groups if group.silos]

    def _enough(self, now: Sequence[RequestGroup]) -> bool:
        return sum(map(len, self._here(now).values())) >= min(self._quorum, self._members(now))

    def _members(self, now: Sequence[RequestGroup]) -> int:
        return sum(len(group.silos) for group in now)

    def _note_returned(self) -> None:
        """Who answered late, and so is there again."""
        for silo in [*self._absent]:
            if any(self._store.digest(request_id, silo) is not None for request_id in self._absent[silo]):
                del self._absent[silo]

    def _note_absent(self, now: Sequence[RequestGroup], took_part: Mapping[str, Sequence[str]]) -> None:
        """Who is not waited for in the next round, and is not sent this one's request any more."""
        withdraw: Callable[[str, Sequence[str]], None] | None = getattr(self._grid, "withdraw", None)
        for group in now:
            skipped = sorted(group.silos - set(took_part.get(group.request.id, ())))
            for silo in skipped:
                self._absent.setdefault(silo, deque(maxlen=_REMEMBERED)).append(group.request.id)
            for silo in took_part.get(group.request.id, ()):
                self._absent.pop(silo, None)
            if skipped and withdraw is not None and group.request.stage:
                withdraw(group.request.id, skipped)  # but not that of the first round: who answers it joins the others

    def _releases(self, number: int, took_part: Mapping[str, Sequence[str]]) -> list[Release]:
        """The releases of a closed round, by silo name."""
        found = [
            release
            for request_id, silos in took_part.items()
            for release in self._store.releases(request_id, self._run.roster)
            if release.silo in silos
        ]
        gone = {silo for silos in took_part.values() for silo in silos} - {release.silo for release in found}
        if gone:
            raise IntegrityError(
                f"round {number + 1} was made with the release of {', '.join(sorted(gone))}, which is not among the "
                "silos any more; all later rounds rest on it, so the run cannot go on: start a new one"
            )
        return sorted(found, key=lambda release: release.silo)

    def _without_arrays(self, stage: Stage) -> Stage:
        """A stage that takes no memory to speak of: its sums are read and added up again by whoever looks at them."""
        assert stage.statistics is not None
        requests = {group.request.id: group.silos for group in stage.asked}
        used = {release.silo: release.planned for release in stage.releases}
        layout = self._method.layout(self._settings, self._description, stage.asked[0].request.stage)
        weight = self._method.count_weight(self._settings, stage.asked[0].request.stage)

        def sums() -> Mapping[str, NDArray]:
            releases = [
                release.as_planned(planned)
                for request_id in requests
                for release in self._store.releases(request_id, self._run.roster)
                if (planned := used.get(release.silo)) is not None
            ]
            ordered = sorted(releases, key=lambda release: release.silo)
            return aggregate(ordered, layout, self._run.scenario.aggregation.rule, weight).sums

        first = stage.asked[0].request.stage == 0
        return replace(
            stage,
            asked=stage.asked if first else (),
            releases=[release.bare() for release in stage.releases],
            statistics=replace(stage.statistics, sums=_Loaded(sums), stage_input={}),
        )


class _Loaded(Mapping[str, NDArray]):
    """Arrays that are read anew whenever somebody looks at one."""

    def __init__(self, load: Callable[[], Mapping[str, NDArray]]) -> None:
        self._load = load

    def __getitem__(self, name: str) -> NDArray:
        return self._load()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._load())

    def __len__(self) -> int:
        return len(self._load())


def _of(group: RequestGroup, silos: frozenset[str] | set[str]) -> RequestGroup:
    return RequestGroup(group.request, frozenset(silos))
