"""Asking silos on a grid: a message for each, what comes of its reply, and what is wrong where nothing is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dpdd.common import flower  # first: it turns Flower's telemetry off

# isort: split
from flwr.app import Message
from flwr.serverapp import Grid

from dpdd.common.errors import DpddError, IntegrityError, WireError
from dpdd.common.wire.answer import Refusal, decode_answer
from dpdd.server.aggregation.usable import UNUSABLE
from dpdd.server.run.addressing import group_for, silos_of
from dpdd.server.run.requests import RequestGroup
from dpdd.server.run.roster import Roster
from dpdd.server.run.store import Store

SILO_FAILED, NO_ANSWER = 1000, 1001
"""Flower error codes of a silo that could not answer, and may be able to later, and of one that did not in time."""


class Asking:
    """The requests of one stage, as messages to the nodes of a grid; `trouble` is what is wrong, by silo.

    `left_out` are nodes that are not asked, each with its silo and the reason. Of the silos in trouble, `failed` are
    those that could not answer now, and `late` those that did not: both may later.
    """

    def __init__(
        self,
        grid: Grid,
        asked: Sequence[RequestGroup],
        store: Store,
        roster: Roster,
        left_out: Mapping[int, tuple[str, str]],
    ) -> None:
        self._store, self._roster = store, roster
        nodes = sorted(grid.get_node_ids())
        self._names = silos_of(grid, nodes)
        to = {node: group for node in nodes if (group := group_for(node, self._names, asked)) is not None}
        self.trouble = dict(left_out[node] for node in to if node in left_out)
        self.failed: set[str] = set()
        self.late: set[str] = set()
        self._to = {node: group for node, group in to.items() if node not in left_out}
        self.messages = [
            grid.create_message(
                flower.pack(group.request.encode(), "dpdd.v1.ReleaseRequest"),
                flower.ACTION,
                node,
                str(group.request.stage),
            )
            for node, group in self._to.items()
        ]

    def take(self, reply: Message) -> None:
        """Keep the release in a reply, or note what there is instead."""
        node = reply.metadata.src_node_id
        who, group = self._names.get(node, f"node {node}"), self._to[node]
        if reply.has_error():
            self.trouble[who] = str(reply.error.reason)
            {SILO_FAILED: self.failed, NO_ANSWER: self.late}.get(reply.error.code, set()).add(who)
            return
        self._store.expected(group.request.id)  # not below: what cannot be planned here is no silo's fault
        try:
            answer = decode_answer(flower.unpack(reply.content, "dpdd.v1.Answer"))
            if isinstance(answer, Refusal):
                self.trouble[answer.silo] = f"refused ({answer.reason.words}): {answer.message}"
                return
            release = self._store.add(answer.data, group.request.id, self._roster)
            if release.silo not in group.silos:
                raise IntegrityError(f"silo {release.silo} answered a request that was for others")
        except (WireError, DpddError) as error:
            self.trouble[who] = f"{UNUSABLE}: {error}"
