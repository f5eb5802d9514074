"""A round is closed without a silo: its request is not sent any more, and an answer that comes all the same is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpdd.client.transport.upload import manifest_of, upload
from dpdd.common import flower
from dpdd.common.errors import DpddError
from dpdd.server.commands.status import MOST_STAGES, _asked_table, _awaited
from dpdd.server.run.store import Asked
from dpdd.server.transport.grid import Deadline, ExchangeGrid
from tests.client.silos import make_request
from tests.server.transport.worlds import entries, running, until, world


def test_a_request_that_nobody_waits_for_is_not_sent(tmp_path: Path) -> None:
    with world(tmp_path) as here:
        silo = here.silo("north", epsilon=4.0)
        grid = ExchangeGrid(here.queue, here.coordinator.registry.roster(), Deadline(200.0))
        (node,) = grid.get_node_ids()
        closed, still_open = make_request("closed"), make_request("open")
        for request in (closed, still_open):
            content = flower.pack(request.encode(), "dpdd.v1.ReleaseRequest")
            pushed = [*grid.push_messages([grid.create_message(content, flower.ACTION, node, "1")])]
            if request is closed:
                grid.withdraw(closed.id, ["north"])
                assert grid.pull_messages(pushed) == []
        row = here.queue.row(closed.id, "north")
        assert row is not None and row.state == "skipped" and not _awaited(row)
        with running(silo):
            until(lambda: here.queue.digest(still_open.id, "north"))
        assert entries(silo) == ["open", "reserve", "commit"], "the closed one was never seen"
        silo.answer(closed.encode())  # it was on its way already
        path = silo.outbox.path(closed.id)
        with here.channel(silo) as channel:
            upload(channel, path, manifest_of(path, closed.id), lambda _received: None)
        assert here.queue.digest(closed.id, "north") is not None
        grid.withdraw(still_open.id, ["north"])
        row = here.queue.row(still_open.id, "north")
        assert row is not None and row.state == "released", "what is here stays"


def test_who_gives_a_time_limit_decides_how_many_are_enough(tmp_path: Path) -> None:
    """Of two silos one has answered; a run with a quorum of two would stop, and a round with a limit goes on."""
    with world(tmp_path) as here:
        silo, _ = here.silo("north"), here.silo("south")
        request = make_request()
        here.ask(silo)
        with running(silo):
            until(lambda: here.queue.digest(request.id, "north"))
        grid = ExchangeGrid(here.queue, here.coordinator.registry.roster(), Deadline(0.0, quorum=2))
        content = flower.pack(request.encode(), "dpdd.v1.ReleaseRequest")
        messages = [grid.create_message(content, flower.ACTION, node, "1") for node in grid.get_node_ids()]
        with pytest.raises(DpddError, match="quorum is 2"):
            list(grid.send_and_receive(messages))
        replies = list(grid.send_and_receive(messages, timeout=0.0))
        assert sorted(reply.has_error() for reply in replies) == [False, True]


def rows(silo: str, states: str) -> list[tuple[Asked, int]]:
    words = {"r": "released", "s": "skipped", "a": "asked"}
    now = "2026-11-19T10:00:00"
    return [(Asked(f"{stage:064x}", silo, words[each], None, now), stage) for stage, each in enumerate(states)]


def test_many_rounds_take_a_line_for_those_that_a_silo_answered_in_a_row() -> None:
    text = _asked_table([*rows("north", "r" * 200), *rows("east", "r" * 90 + "sss" + "r" * 106 + "a")])
    lines = [line.split() for line in text.splitlines()[2:]]
    assert [line[1:4] for line in lines] == [
        ["0-89", "east", "released"],
        ["90-92", "east", "skipped"],
        ["93-198", "east", "released"],
        ["199", "east", "asked"],
        ["0-199", "north", "released"],
    ]
    few = _asked_table(rows("north", "r" * MOST_STAGES)).splitlines()
    assert len(few) == 2 + MOST_STAGES
