"""The dry round: before anybody is asked to spend, every silo is asked what it would do.

It is over when all have reported; or after a time of grace, once enough silos have said that they would answer; or at
the deadline. Who says no is left out of the asking. Who says nothing is asked all the same: its silence may end. With
fewer silos that would answer than the quorum nobody is asked.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpdd.common import flower  # first: it turns Flower's telemetry off

# isort: split
from flwr.app import Message
from flwr.serverapp import Grid

from dpdd.common.errors import DpddError, WireError
from dpdd.common.progress import Console
from dpdd.common.wire.parsing import check
from dpdd.common.wire.plan import PlanReport, decode_report
from dpdd.server.run.addressing import group_for, silos_of
from dpdd.server.run.exchange_section import ExchangeSection
from dpdd.server.run.rehearsal import Schema, Word, differences, plan_table, shortage, unlike_fits
from dpdd.server.run.requests import RequestGroup
from dpdd.server.run.roster import Roster
from dpdd.server.run.store import Store

GRACE_MINUTES = 2.0
_TICK = 0.1


@dataclass(frozen=True)
class RehearsalDeadline:
    """Seconds to wait for those who say nothing: so long when there are enough without them, and at the most."""

    grace: float = 60.0 * GRACE_MINUTES
    most: float = 86_400.0

    @classmethod
    def of(cls, exchange: ExchangeSection, deadline_minutes: float | None = None) -> RehearsalDeadline:
        """The scenario's; a run with another deadline waits no longer than that here either."""
        most = exchange.deadline_minutes if deadline_minutes is None else deadline_minutes
        grace = exchange.rehearsal_minutes
        if grace is None:
            grace = min(GRACE_MINUTES, most / 4)
        return cls(60.0 * min(grace, most), 60.0 * most)


class DryRound:
    """One dry round on a grid; `tasks` are lists of requests of which each needs a quorum of its own."""

    def __init__(
        self,
        grid: Grid,
        tasks: Sequence[Sequence[RequestGroup]],
        roster: Roster,
        store: Store,
        *,
        quorum: int,
        deadline: RehearsalDeadline,
        console: Console,
        fit: str | None = None,
    ) -> None:
        self._grid, self._tasks, self._quorum, self._deadline, self._console = grid, tasks, quorum, deadline, console
        self._roster, self._fit, self._waited = roster, fit, 0.0
        groups = [group for task in tasks for group in task]
        nodes = sorted(grid.get_node_ids())
        self._names = silos_of(grid, nodes)
        self._words: dict[str, Word] = {
            silo: Word(silo, released=True)
            for group in groups
            for silo in store.digests(group.request.id)
            if silo in group.silos and silo in roster.keys
        }
        self._to: dict[int, RequestGroup] = {
            node: group
            for node in nodes
            if self._names.get(node) not in self._words and (group := group_for(node, self._names, groups)) is not None
        }
        self._no: dict[int, tuple[str, str]] = {}

    def hold(self) -> Mapping[int, tuple[str, str]]:
        """Ask and show; the nodes that would refuse: silo and reason. DpddError below the quorum."""
        if self._to:
            self._gather()
            self._show()
        for task in self._tasks:
            absence = f"did not report within {_words(self._waited)}" if self._to else "was not asked"
            why = shortage(self._of(task), self._quorum, absence)
            if why is not None:
                raise DpddError(why)
        return self._no

    def _gather(self) -> None:
        messages = [
            self._grid.create_message(
                flower.pack(group.request.encode(), "dpdd.v1.ReleaseRequest"), flower.PLAN, node, "dry round"
            )
            for node, group in self._to.items()
        ]
        self._console("asking the silos for their plans", 0, len(messages))
        started, told = time.monotonic(), list[str]()
        waiting = dict(zip(self._to, self._grid.push_messages(messages), strict=True))
        while True:
            for reply in self._grid.pull_messages(list(waiting.values())):
                node = reply.metadata.src_node_id
                if waiting.pop(node, None) is not None:
                    self._note(node, reply)
            self._waited = time.monotonic() - started
            enough = all(shortage(self._of(task), self._quorum, "") is None for task in self._tasks)
            if not waiting or self._waited >= (self._deadline.grace if enough else self._deadline.most):
                return
            awaited = [self._who(node) for node in waiting]
            if awaited != told and self._waited > 1.0:
                told = awaited
                few = ", ".join(awaited[:5]) + (f" and {len(awaited) - 5} more" if len(awaited) > 5 else "")
                self._console.say(f"dry round: waiting for {len(awaited)} of {len(messages)} silos: {few}")
            time.sleep(_TICK)

    def _note(self, node: int, reply: Message) -> None:
        """Note what a silo said."""
        who = self._who(node)
        if reply.has_error():
            self._words[who] = Word(who, silence=str(reply.error.reason))
            return
        try:
            report = self._checked(node, decode_report(flower.unpack(reply.content, "dpdd.v1.PlanReport")))
        except WireError as error:
            self._words[who] = Word(who, silence=f"sent something unusable: {error}")
            return
        word = Word(report.silo, report)
        self._words[word.silo] = word
        if word.no is not None:
            self._no[node] = (word.silo, word.no)

    def _checked(self, node: int, report: PlanReport) -> PlanReport:
        check(report.silo in self._roster.keys, "a report by a silo that is not in the roster")
        check(report.silo == self._names.get(node, report.silo), "a report by another silo than was asked")
        check(report.request_id == self._to[node].request.id, "a report about another request")
        return report

    def _who(self, node: int) -> str:
        return self._names.get(node, f"node {node}")

    def _of(self, task: Sequence[RequestGroup]) -> list[Word]:
        """A word for every silo of a task."""
        silos = sorted(silo for group in task for silo in group.silos)
        return [self._words.get(silo, Word(silo)) for silo in silos]

    def _show(self) -> None:
        words = [word for task in self._tasks for word in self._of(task)]
        self._console.say(plan_table(words))
        for task in self._tasks:
            for group in task:
                request = group.request
                schema = Schema(request.classes, request.shape, self._fit, request.table)
                for word in self._of([group]):
                    self._explain(word, schema)
        unlike = unlike_fits(words)
        if unlike is not None:
            self._console.say(f"  {unlike}")

    def _explain(self, word: Word, schema: Schema) -> None:
        """Say why a silo is left out, or that it is asked although it said nothing."""
        if word.no is not None:
            self._console.say(f"  without {word.silo}: {word.no}")
        elif not word.willing:
            why = word.silence or f"did not report within {_words(self._waited)}"
            self._console.say(f"  {word.silo} {why}")
        for line in differences(word.silo, word.report.declared, schema) if word.report is not None else ():
            self._console.say(f"    {line}")


def _words(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
