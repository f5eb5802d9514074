"""A Flower `Grid` over the exchange, so that the `ServerApp` runs on it as it does anywhere else.

Nodes are the silos of a roster, connected or not. `send_and_receive` puts the requests on the board and yields an
answer per silo as it comes: a release from the store (at once, when it is there already), a refusal, or an error for a
silo in trouble or one that did not answer in time. A silo whose operator has still to decide counts as not having
answered.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from dpdd.common import flower  # first: it turns Flower's telemetry off

# isort: split
from flwr.app import Error, Message

from dpdd.common.errors import DpddError
from dpdd.common.wire.answer import SignedReleaseBytes, decode_answer, encode_answer
from dpdd.server.exchange.board import Board, settled
from dpdd.server.grid import COORDINATOR, SiloGrid
from dpdd.server.roster import Roster

IN_TROUBLE, NO_ANSWER = 1000, 1001
"""Flower error codes: a silo that could not answer, and one that did not."""


@dataclass(frozen=True)
class Patience:
    """How long to wait for answers, and how many releases there must be by then."""

    seconds: float
    quorum: int = 1

    @property
    def words(self) -> str:
        """The time, for people."""
        return f"{self.seconds / 60:g} min" if self.seconds >= 60 else f"{self.seconds:g} s"


class ExchangeGrid(SiloGrid):
    """Node i + 2 is the i-th silo of the roster, by name; 1 is the coordinator."""

    def __init__(
        self,
        board: Board,
        roster: Roster,
        patience: Patience,
        awaited: Callable[[list[str], int], None] = lambda _silos, _of: None,
    ) -> None:
        super().__init__(dict(enumerate(sorted(roster.keys), start=COORDINATOR + 1)))
        self._board, self._patience, self._awaited = board, patience, awaited
        self._pushed: dict[str, Message] = {}

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Put the requests on the board."""
        ids = []
        asked: dict[bytes, list[str]] = {}
        for message in messages:
            asked.setdefault(_request(message), []).append(self._names[message.metadata.dst_node_id])
            self._pushed[message.metadata.message_id] = message
            ids.append(message.metadata.message_id)
        for request, silos in asked.items():
            self._board.ask(hashlib.sha256(request).hexdigest(), request, silos)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The answers that are final, once each."""
        found = []
        for identity in list(message_ids):
            message = self._pushed.get(identity)
            reply = None if message is None else self._reply(message, final=False)
            if reply is not None:
                del self._pushed[identity]
                found.append(reply)
        return found

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        """Answers as they come; DpddError when the deadline passes with fewer releases than the quorum."""
        patience = self._patience if timeout is None else Patience(timeout, self._patience.quorum)
        waiting = list(self.push_messages(messages))
        of, released = len(waiting), 0
        quorum = min(patience.quorum, of)
        deadline = time.monotonic() + patience.seconds
        version = -1
        while waiting:
            for identity in list(waiting):  # one at a time: releases are large
                for reply in self.pull_messages([identity]):
                    waiting.remove(identity)
                    released += _is_release(reply)
                    yield reply
            left = deadline - time.monotonic()
            if not waiting or left <= 0:
                break
            self._awaited([self._names[self._pushed[identity].metadata.dst_node_id] for identity in waiting], of)
            version = self._board.wait(version, min(left, 1.0))
        late = [self._pushed.pop(identity) for identity in waiting]
        if 0 < released < quorum:  # with no release at all, the ServerApp says why
            names = ", ".join(self._names[message.metadata.dst_node_id] for message in late)
            raise DpddError(
                f"{released} of {of} silos released something, and the quorum is {quorum}"
                + (f" (no answer within {patience.words} from {names})" if names else "")
                + "; nothing is lost: `dpdd-server resume` goes on from here"
            )
        for message in late:
            yield self._reply(message, final=True, patience=patience)  # type: ignore[misc]

    def _reply(self, message: Message, *, final: bool, patience: Patience | None = None) -> Message | None:
        """The answer to a message, if there is one, or (when `final`) what there is instead."""
        silo = self._names[message.metadata.dst_node_id]
        request_id = hashlib.sha256(_request(message)).hexdigest()
        digest = self._board.digest(request_id, silo)
        if digest is not None:
            answer = encode_answer(SignedReleaseBytes(self._board.read(digest)))
            return Message(flower.pack(answer, "dpdd.v1.Answer"), reply_to=message)
        row = self._board.row(request_id, silo)
        if row is not None and row.refusal is not None and (final or settled(row)):
            return Message(flower.pack(row.refusal, "dpdd.v1.Answer"), reply_to=message)
        if row is not None and row.state == "in trouble":
            return Message(Error(IN_TROUBLE, "the silo could not answer; its own log says why"), reply_to=message)
        if not final:
            return None
        assert patience is not None
        got = "got the request" if row is not None and row.state == "delivered" else "never connected"
        return Message(Error(NO_ANSWER, f"did not answer within {patience.words} ({got})"), reply_to=message)


def _request(message: Message) -> bytes:
    return flower.unpack(message.content, "dpdd.v1.ReleaseRequest")


def _is_release(reply: Message) -> bool:
    if reply.has_error():
        return False
    return isinstance(decode_answer(flower.unpack(reply.content, "dpdd.v1.Answer")), SignedReleaseBytes)
