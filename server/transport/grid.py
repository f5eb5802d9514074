"""A Flower `Grid` over the exchange, so that the `ServerApp` runs on it as it does anywhere else.

Nodes are the silos of a roster, connected or not. `send_and_receive` queues the requests and yields an
answer per silo as it comes: a release from the store (at once, when it is there already), a refusal, or an error for a
silo in trouble, one that was revoked, or one that did not answer in time. A silo whose operator has still to decide
counts as not having answered.

Messages of a dry round (`query.plan`) are pushed and pulled: their replies are reports to this very round.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from dpdd.common import flower  # first: it turns Flower's telemetry off

# isort: split
from flwr.app import Error, Message

from dpdd.common.errors import DpddError
from dpdd.common.wire.answer import SignedReleaseBytes, encode_answer
from dpdd.server.aggregation.usable import UNUSABLE
from dpdd.server.run.asking import NO_ANSWER, SILO_FAILED
from dpdd.server.run.roster import Roster
from dpdd.server.transport.request_queue import Rehearsal, RequestQueue, settled
from dpdd.server.transport.silo_grid import COORDINATOR, SiloGrid

IN_TROUBLE, REVOKED, NOT_USABLE = SILO_FAILED, 1002, 1003
"""Further Flower error codes: a silo that may not answer any more, and one that answered something else than was
asked."""


QUIET = 5.0
"""Seconds before it is said who is awaited in a later stage: many rounds take less."""


@dataclass(frozen=True)
class Deadline:
    """How long to wait for answers, and how many releases there must be by then."""

    seconds: float
    quorum: int = 1
    spent: float = 0.0

    @property
    def left(self) -> float:
        """The seconds that are not spent."""
        return max(self.seconds - self.spent, 0.0)

    @property
    def words(self) -> str:
        """The whole time, for people."""
        return f"{self.seconds / 60:g} min" if self.seconds >= 60 else f"{self.seconds:g} s"


class ExchangeGrid(SiloGrid):
    """Node i + 2 is the i-th silo of the roster, by name; 1 is the coordinator."""

    def __init__(
        self,
        queue: RequestQueue,
        roster: Roster,
        deadline: Deadline,
        awaited: Callable[[list[str], int], None] = lambda _silos, _of: None,
        revoked: Callable[[], Collection[str]] = tuple,
    ) -> None:
        super().__init__(dict(enumerate(sorted(roster.keys), start=COORDINATOR + 1)))
        self._queue, self._deadline, self._awaited, self._revoked = queue, deadline, awaited, revoked
        self._pushed: dict[str, _Pushed] = {}

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Queue the requests."""
        ids = []
        asked: dict[tuple[str, bytes], list[Message]] = {}
        for message in messages:
            request = flower.unpack(message.content, "dpdd.v1.ReleaseRequest")
            asked.setdefault((message.metadata.message_type, request), []).append(message)
            ids.append(message.metadata.message_id)
        for (action, request), those in asked.items():
            request_id = hashlib.sha256(request).hexdigest()
            silos = [self._names[message.metadata.dst_node_id] for message in those]
            rehearsal = None
            if action == flower.PLAN:
                rehearsal = self._queue.rehearse(request_id, request, silos)
            else:
                self._queue.end_rehearsals()
                self._queue.ask(request_id, request, silos)
            for message, silo in zip(those, silos, strict=True):
                self._pushed[message.metadata.message_id] = _Pushed(message, request_id, silo, rehearsal)
        for action, request in asked:
            if action != flower.PLAN:  # while the silos work: some methods take minutes to plan
                self._queue.expected(hashlib.sha256(request).hexdigest(), wait=True)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The answers that are final, once each."""
        replies, revoked = [], self._revoked()
        for identity in list(message_ids):
            pushed = self._pushed.get(identity)
            reply = None if pushed is None else self._reply(pushed, revoked)
            if reply is not None:
                del self._pushed[identity]
                replies.append(reply)
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        """Answers as they come; DpddError when the deadline passes with fewer releases than the quorum.

        Whoever gives a `timeout` decides for himself how many are enough.
        """
        deadline = self._deadline if timeout is None else Deadline(timeout)
        messages = list(messages)
        quiet = time.monotonic() + (0.0 if any(m.metadata.group_id == "0" for m in messages) else QUIET)
        waiting = list(self.push_messages(messages))
        of, released = len(waiting), 0
        quorum = min(deadline.quorum, of)
        ends = time.monotonic() + deadline.left
        version = -1
        while waiting:
            for identity in list(waiting):  # one at a time: releases are large
                pushed = self._pushed[identity]
                for reply in self.pull_messages([identity]):
                    waiting.remove(identity)
                    released += self._queue.digest(pushed.request_id, pushed.silo) is not None
                    yield reply
            left = ends - time.monotonic()
            if not waiting or left <= 0:
                break
            if time.monotonic() >= quiet:
                self._awaited([self._pushed[identity].silo for identity in waiting], of)
            version = self._queue.wait(version, min(left, 1.0))
        late = [self._pushed.pop(identity) for identity in waiting]
        if 0 < released < quorum:  # with no release at all, the ServerApp says why
            names = ", ".join(pushed.silo for pushed in late)
            raise DpddError(
                f"{released} of {of} silos released something, and the quorum is {quorum}"
                + (f" (no answer within {deadline.words} from {names})" if names else "")
                + "; nothing is lost: `dpdd-server resume` goes on from here"
            )
        for pushed in late:
            yield self._timed_out(pushed, deadline)

    def withdraw(self, request_id: str, silos: Iterable[str]) -> None:
        """Nobody waits for these answers any more: the request is not sent to those who have not got it."""
        silos = set(silos)
        self._queue.withdraw(request_id, silos)
        for identity, pushed in list(self._pushed.items()):
            if pushed.request_id == request_id and pushed.silo in silos:
                del self._pushed[identity]

    def _reply(self, pushed: _Pushed, revoked: Collection[str]) -> Message | None:
        """The answer to a message, if there is one."""
        if pushed.rehearsal is not None:
            return self._report(pushed, pushed.rehearsal, revoked)
        digest = self._queue.digest(pushed.request_id, pushed.silo)
        if digest is not None:
            return pushed.answered(encode_answer(SignedReleaseBytes(self._queue.read(digest))))
        row = self._queue.row(pushed.request_id, pushed.silo)
        if row is not None and row.refusal is not None and settled(row):
            return pushed.answered(row.refusal)
        if row is not None and row.state == "in trouble":
            why = self._queue.unusable(pushed.request_id, pushed.silo)
            if why is not None:
                return pushed.failed(NOT_USABLE, f"{UNUSABLE}: {why}")
            return pushed.failed(IN_TROUBLE, "the silo could not answer; its own log says why")
        if pushed.silo in revoked:
            return pushed.failed(REVOKED, "was revoked before it answered")
        return None

    def _report(self, pushed: _Pushed, rehearsal: Rehearsal, revoked: Collection[str]) -> Message | None:
        """What a silo reported in a dry round, if anything."""
        report = self._queue.reported(rehearsal, pushed.silo)
        if report:
            return Message(flower.pack(report, "dpdd.v1.PlanReport"), reply_to=pushed.message)
        if report is not None:
            return pushed.failed(IN_TROUBLE, "the silo could not say what it would do; its own log says why")
        if pushed.silo in revoked:
            return pushed.failed(REVOKED, "is revoked")
        return None

    def _timed_out(self, pushed: _Pushed, deadline: Deadline) -> Message:
        """What there is instead of an answer when the time is over."""
        row = self._queue.row(pushed.request_id, pushed.silo)
        if row is not None and row.refusal is not None:  # its operator has not decided
            return pushed.answered(row.refusal)
        got = "got the request" if row is not None and row.state == "delivered" else "never connected"
        return pushed.failed(NO_ANSWER, f"did not answer within {deadline.words} ({got})")


@dataclass(frozen=True)
class _Pushed:
    """A message that waits for its answer."""

    message: Message
    request_id: str
    silo: str
    rehearsal: Rehearsal | None = None

    def answered(self, answer: bytes) -> Message:
        return Message(flower.pack(answer, "dpdd.v1.Answer"), reply_to=self.message)

    def failed(self, code: int, why: str) -> Message:
        return Message(Error(code, why), reply_to=self.message)
