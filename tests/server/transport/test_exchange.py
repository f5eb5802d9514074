"""Silos and a coordinator that talk: joining, asking, answering, approving, restarting, being late."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from dpdd.client.cli import main as client
from dpdd.client.silo import Silo
from dpdd.client.transport.channel import Files
from dpdd.client.transport.join import join
from dpdd.common import flower
from dpdd.common.errors import DpddError, IntegrityError
from dpdd.common.wire.answer import Reason, Refusal, SignedReleaseBytes, decode_answer
from dpdd.server.run.store import Store
from dpdd.server.transport.grid import Deadline, ExchangeGrid
from tests.client.silos import make_request, make_silo
from tests.server.transport.worlds import World, entries, running, until, world


def ask(grid: ExchangeGrid, request: bytes, stage: str = "0") -> dict[str, object]:
    """Everybody's answer: a release, a refusal, or the error's words."""
    messages = [
        grid.create_message(flower.pack(request, "dpdd.v1.ReleaseRequest"), flower.ACTION, node, stage)
        for node in grid.get_node_ids()
    ]
    answers: dict[str, object] = {}
    for reply in grid.send_and_receive(messages):
        who = grid.silo_of(reply.metadata.src_node_id)
        if reply.has_error():
            answers[who] = reply.error.reason
        else:
            answers[who] = decode_answer(flower.unpack(reply.content, "dpdd.v1.Answer"))
    return answers


def grid_of(here: World, seconds: float = 200.0, quorum: int = 1) -> ExchangeGrid:
    return ExchangeGrid(here.queue, here.coordinator.registry.roster(), Deadline(seconds, quorum))


def test_two_rounds_over_tls_give_the_bytes_in_the_outboxes(tmp_path: Path) -> None:
    with world(tmp_path) as here:
        silos = [here.silo(name, epsilon=4.0) for name in ("north", "south")]
        grid = grid_of(here)
        with running(silos[0]), running(silos[1]):
            for number in (0, 1):
                request = make_request(run=f"round-{number}")
                answers = ask(grid, request.encode(), str(number))
                for silo in silos:
                    answer = answers[silo.settings.name]
                    assert isinstance(answer, SignedReleaseBytes)
                    assert answer.data == silo.outbox.get(request.id)
            again = ask(grid, make_request(run="round-0").encode())
        assert again.keys() == {"north", "south"}
        for silo in silos:
            assert entries(silo) == ["open", "reserve", "commit", "reserve", "commit"]
        assert len(here.releases()) == 4 and not here.partials()


def test_keys_stay_private_and_the_coordinator_is_pinned(tmp_path: Path) -> None:
    with world(tmp_path) as here:
        silo = here.silo("north")
        for path in [
            *(tmp_path / "coordinator" / "state").glob("*.key"),
            tmp_path / "coordinator" / "state" / "server.pem",
            silo.folder / "state" / "coordinator" / "key.pem",
        ]:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        pinned = silo.settings.coordinator
        assert pinned is not None
        assert pinned.authority_sha256 == here.coordinator.authority.fingerprint.hex()
        assert pinned.address == f"127.0.0.1:{here.port}"
        registry = (tmp_path / "coordinator" / "state" / "registry.sqlite").read_bytes()
        token = here.coordinator.enrol("south")
        assert token.secret not in registry and str(token).encode() not in registry


def test_a_token_is_good_once_and_not_for_ever(tmp_path: Path) -> None:
    with world(tmp_path) as here:
        address = f"127.0.0.1:{here.join_port}"
        token = here.coordinator.enrol("north")
        silo = make_silo(tmp_path / "north")
        join(silo, address, token)
        certificate = (silo.folder / "state" / "coordinator" / "certificate.pem").read_bytes()
        join(Silo(silo.folder), address, token)  # a reply that got lost: the same key gets the same certificate
        assert (silo.folder / "state" / "coordinator" / "certificate.pem").read_bytes() == certificate
        thief = make_silo(tmp_path / "elsewhere" / "north", seed=1)
        with pytest.raises(IntegrityError, match="another release key"):
            join(thief, address, token)
        late = here.coordinator.enrol("south", timedelta(seconds=-1))
        with pytest.raises(IntegrityError, match="expired"):
            join(make_silo(tmp_path / "south"), address, late)
        with pytest.raises(DpddError, match="not known"):
            stranger = type(token)(bytes(24), token.authority_sha256)
            join(make_silo(tmp_path / "west"), address, stranger)
        assert [s.name for s in here.coordinator.registry.silos() if s.joined] == ["north"]


def test_a_silo_with_another_name_does_not_cost_the_token(tmp_path: Path) -> None:
    with world(tmp_path) as here:
        token = here.coordinator.enrol("north")
        with pytest.raises(IntegrityError, match=r"the token is for silo 'north', and this silo is called 'south'"):
            join(make_silo(tmp_path / "south"), f"127.0.0.1:{here.join_port}", token)
        assert not here.coordinator.registry.silos()[0].joined
        join(make_silo(tmp_path / "north"), f"127.0.0.1:{here.join_port}", token)
        assert here.coordinator.registry.silos()[0].joined


def test_the_port_may_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with world(tmp_path) as here:
        monkeypatch.setattr("dpdd.client.transport.join.JOIN_PORT", here.join_port)
        pinned = join(make_silo(tmp_path / "north"), "127.0.0.1", here.coordinator.enrol("north"))
        assert pinned.address == f"127.0.0.1:{here.port}"


def test_a_token_of_another_coordinator_sends_nothing(tmp_path: Path) -> None:
    with world(tmp_path / "a") as here, world(tmp_path / "b") as other:
        silo = make_silo(tmp_path / "north")
        with pytest.raises(IntegrityError, match="nothing was sent"):
            join(silo, f"127.0.0.1:{here.join_port}", other.coordinator.enrol("north"))
        assert not (silo.folder / "state" / "coordinator").exists()
        joined = here.silo("north")
        with pytest.raises(IntegrityError, match="pins a coordinator"):
            join(joined, f"127.0.0.1:{other.join_port}", other.coordinator.enrol("north"))


def test_approval_is_waited_for_and_answered_then(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with world(tmp_path) as here:
        yes, no = (here.silo(name, approval="ask") for name in ("yes", "no"))
        request = make_request()
        answers: dict[str, object] = {}
        asking = threading.Thread(target=lambda: answers.update(ask(grid_of(here), request.encode())))
        with running(yes), running(no):
            asking.start()
            until(lambda: yes.waiting() and no.waiting())
            until(lambda: all((row := here.queue.row(request.id, s)) and row.refusal for s in ("yes", "no")))
            assert entries(yes) == ["open"] and not answers
            assert client(["approve", request.id[:12], "--silo", str(yes.folder)]) == 0
            assert client(["deny", request.id[:12], "--why", "not this year", "--silo", str(no.folder)]) == 0
            asking.join(30.0)
        assert isinstance(answers["yes"], SignedReleaseBytes)
        refusal = answers["no"]
        assert isinstance(refusal, Refusal) and refusal.reason is Reason.DENIED and "not this year" in refusal.message
        assert entries(yes) == ["open", "approve", "reserve", "commit"] and entries(no) == ["open", "deny"]


def test_a_refusal_is_typed_and_costs_nothing(tmp_path: Path) -> None:
    with world(tmp_path) as here:
        poor = here.silo("poor", epsilon=0.25)
        with running(poor):
            answer = ask(grid_of(here), make_request(epsilon=1.0).encode())["poor"]
        assert isinstance(answer, Refusal) and answer.reason is Reason.OVER_BUDGET
        assert answer.shortfall is not None and answer.shortfall.remaining == pytest.approx(0.25, rel=0.01)
        assert entries(poor) == ["open"]


def test_a_silo_in_trouble_says_so_without_saying_why(tmp_path: Path) -> None:
    with world(tmp_path) as here:
        silo = here.silo("north")
        (silo.folder / "records.npz").write_bytes(b"broken")
        with running(silo):
            answer = ask(grid_of(here), make_request().encode())["north"]
        assert answer == "the silo could not answer; its own log says why"


def test_half_the_silos_never_answer(tmp_path: Path) -> None:
    with world(tmp_path) as here:
        silos = [here.silo(name) for name in ("east", "north", "south", "west")]
        with running(silos[0]), running(silos[2]):
            answers = ask(grid_of(here, seconds=4.0, quorum=2), make_request().encode())
            assert {who for who, answer in answers.items() if isinstance(answer, SignedReleaseBytes)} == {
                "east",
                "south",
            }
            for who in ("north", "west"):
                assert answers[who] == "did not answer within 4 s (never connected)"
            with pytest.raises(DpddError, match=r"2 of 4 silos released .* quorum is 3 .*north, west"):
                ask(grid_of(here, seconds=0.2, quorum=3), make_request().encode())
        with running(silos[1]), running(silos[3]):  # the late ones; nobody else is asked again
            answers = ask(grid_of(here, quorum=4), make_request().encode())
        assert all(isinstance(answer, SignedReleaseBytes) for answer in answers.values())
        assert all(entries(silo) == ["open", "reserve", "commit"] for silo in silos)


def test_a_request_that_was_refused_is_put_again_on_the_same_connection(tmp_path: Path) -> None:
    with world(tmp_path) as here:
        poor = here.silo("poor", epsilon=0.25)
        with running(poor):
            for _ in range(2):
                answer = ask(grid_of(here), make_request(epsilon=1.0).encode())["poor"]
                assert isinstance(answer, Refusal) and answer.reason is Reason.OVER_BUDGET


def test_a_revoked_silo_is_not_waited_for_and_not_used_again(tmp_path: Path) -> None:
    with world(tmp_path) as here:
        east, west = here.silo("east"), here.silo("west")
        registry, request = here.coordinator.registry, make_request()
        grid = ExchangeGrid(here.queue, registry.roster(), Deadline(300.0), revoked=registry.revoked)
        answers: dict[str, object] = {}
        asking = threading.Thread(target=lambda: answers.update(ask(grid, request.encode())))
        with running(east):
            asking.start()
            until(lambda: here.queue.digest(request.id, "east"))
            registry.revoke("west")
            asking.join(30.0)
        assert answers["west"] == "was revoked before it answered" and not asking.is_alive()
        store = Store(tmp_path / "run" / "store")
        assert [release.silo for release in store.releases(request.id, registry.roster())] == ["east"]
        registry.revoke("east")
        assert store.releases(request.id, registry.roster()) == []  # a run that is made again goes on without it
        assert list(store.digests(request.id)) == ["east"]  # but it stays
        store.close()
        assert entries(west) == ["open"]


def test_a_run_is_served_by_one_process(tmp_path: Path) -> None:
    with world(tmp_path):
        store = str(tmp_path / "run" / "store")
        script = "import pathlib; from dpdd.server.transport.request_queue import RequestQueue\n"
        script += f"RequestQueue(pathlib.Path({store!r}))"
        second = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert "another dpdd-server serves this run" in second.stderr


def test_what_is_acknowledged_survives_a_power_cut(tmp_path: Path) -> None:
    """SQLite's FULL does not sync the folder after a commit: a journal that comes back would undo it. EXTRA does."""
    with world(tmp_path) as here:
        for database in (here.coordinator.registry._db, here.queue._store._db):
            assert database.execute("PRAGMA synchronous").fetchone() == (3,)
            assert database.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_either_side_restarts(tmp_path: Path) -> None:
    with world(tmp_path) as here:
        silo = here.silo("north")
        with running(silo) as node:
            until(lambda: here.coordinator.registry.silos()[0].doing == "connected")
            here.stop()
            first = make_request()
            here.ask(silo, request=first)
            here.start()
            until(lambda: here.queue.digest(first.id, "north"))
        assert node.errors == []  # type: ignore[attr-defined]
        second = here.ask(silo, request=make_request(run="second", epsilon=0.01))
        with running(Silo(silo.folder)):
            until(lambda: (row := here.queue.row(second.id, "north")) and row.state != "asked")


def test_a_demo_lets_anybody_join_but_only_on_loopback(tmp_path: Path) -> None:
    from dpdd.server.transport.service import Address, ExchangeServer

    with world(tmp_path) as here:
        silo = make_silo(tmp_path / "north")
        with pytest.raises(IntegrityError, match="join token"):
            join(silo, f"127.0.0.1:{here.join_port}", None)
        with pytest.raises(DpddError, match=r"127\.0\.0\.1"):
            join(silo, "example.org:1", None)
        with pytest.raises(DpddError, match="nowhere else"):
            ExchangeServer(here.coordinator, here.queue, Address("0.0.0.0"), open_enrolment=True)
        with here.serving_anybody() as demo:
            join(silo, f"127.0.0.1:{demo.join_port}", None)
        assert Silo(silo.folder).settings.coordinator is not None
        certificate = Files(silo.folder).certificate.read_bytes()
        with (
            world(tmp_path / "other") as other,
            other.serving_anybody() as demo,
            pytest.raises(IntegrityError, match="pins a coordinator"),
        ):
            join(Silo(silo.folder), f"127.0.0.1:{demo.join_port}", None)
        assert Files(silo.folder).certificate.read_bytes() == certificate


def test_requests_that_wait_do_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpdd.client import silo as module

    monkeypatch.setattr(module, "MOST_WAITING", 3)
    silo = make_silo(tmp_path / "north", approval="ask")
    reasons = []
    for number in range(5):
        answer = silo.answer(make_request(run=f"run-{number}").encode())
        assert isinstance(answer, Refusal)
        reasons.append(answer.reason)
    assert reasons == [Reason.AWAITING_APPROVAL] * 3 + [Reason.NOT_ALLOWED] * 2
    assert len(list((silo.folder / "state" / "requests").iterdir())) == 3
    first = silo.waiting()[0]
    assert client(["deny", first.id, "--why", "no", "--silo", str(silo.folder)]) == 0
    answer = silo.answer(make_request(run="run-9").encode())
    assert isinstance(answer, Refusal) and answer.reason is Reason.AWAITING_APPROVAL
    monkeypatch.setattr(module, "MOST_WAITING_BYTES", 10)
    answer = silo.answer(make_request(run="run-10").encode())
    assert isinstance(answer, Refusal) and answer.reason is Reason.NOT_ALLOWED


def test_the_roster_of_a_run_is_json(tmp_path: Path) -> None:
    with world(tmp_path) as here:
        here.silo("north")
        here.coordinator.registry.roster().save(tmp_path / "silos.json")
        assert list(json.loads((tmp_path / "silos.json").read_text())) == ["north"]
