"""The request key follows from the one that a silo pinned, and from nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpdd.client.cli import main as client
from dpdd.client.silo import Silo
from dpdd.client.transport.channel import Files
from dpdd.client.transport.join import join
from dpdd.client.transport.request_keys import RequestKeys
from dpdd.common.errors import DpddError, IntegrityError, WireError
from dpdd.common.wire.answer import Reason, Refusal, decode_answer
from dpdd.common.wire.exchange import sign_request
from dpdd.common.wire.request_keys import MOST_ROTATIONS, Rotation, decode_chain, encode_chain, endorse
from dpdd.server.cli import main as server
from dpdd.server.transport import request_keys as server_keys
from dpdd.server.transport import streams
from dpdd.server.transport.coordinator import Coordinator
from tests.client.silos import make_request
from tests.server.transport.worlds import World, entries, running, until, world


@pytest.fixture
def here(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as a_world:
        yield a_world


def public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def keys_of(silo: Silo) -> RequestKeys:
    assert silo.settings.coordinator is not None
    return RequestKeys(Files(silo.folder), silo.settings.coordinator)


def rotate(here: World, times: int = 1) -> bytes:
    """Rotate, as the command does beside a server that is up; the key that signs when it has noticed."""
    for _ in range(times):
        assert server(["rotate-request-key", "--coordinator", str(here.coordinator.folder)]) == 0
    fresh = Coordinator(here.coordinator.folder)
    newest = public(fresh.request_key)
    fresh.close()
    until(lambda: public(here.coordinator.request_key) == newest)
    return newest


def answered(here: World, silo: Silo, run: str) -> None:
    request = here.ask(silo, request=make_request(run=run, epsilon=0.01))
    until(lambda: here.queue.digest(request.id, silo.settings.name))


def test_a_connected_silo_follows_and_one_that_was_away_catches_up(here: World) -> None:
    north, south = here.silo("north", epsilon=4.0), here.silo("south", epsilon=4.0)
    pins = [(silo.folder / "silo.toml").read_bytes() for silo in (north, south)]
    with running(north) as node:
        answered(here, north, "before")
        first = rotate(here)
        answered(here, north, "between")
        assert keys_of(north).key == node._keys.key == first
        newest = rotate(here, 3)
        answered(here, north, "after")
    assert keys_of(north).key == newest and first != newest
    with running(south):
        until(lambda: keys_of(south).key == newest)
        answered(here, south, "late")
    assert [(silo.folder / "silo.toml").read_bytes() for silo in (north, south)] == pins


def test_a_request_of_the_old_key_is_refused_and_costs_nothing(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    north, old = here.silo("north"), here.coordinator.request_key
    rotate(here)
    monkeypatch.setattr(streams, "sign_request", lambda request, _key, *nonce: sign_request(request, old, *nonce))
    with running(north):
        request = here.ask(north)
        until(lambda: (row := here.queue.row(request.id, "north")) and row.state == "refused")
    row = here.queue.row(request.id, "north")
    assert row is not None and row.refusal is not None
    answer = decode_answer(row.refusal)
    assert isinstance(answer, Refusal) and answer.reason is Reason.WRONG_COORDINATOR
    assert entries(north) == ["open"]


def test_a_request_that_waits_its_turn_was_verified_when_it_came(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a rotation would refuse, for good, what the coordinator had asked before it."""
    north = here.silo("north", epsilon=4.0)
    with running(north) as node:
        answer, held, go = node._answer, [], []

        def slow(request_id: str, request: bytes, *, again: bool) -> None:
            held.append(request_id)
            until(lambda: go)
            answer(request_id, request, again=again)

        monkeypatch.setattr(node, "_answer", slow)
        asked = [here.ask(north, request=make_request(run=run, epsilon=0.01)) for run in ("first", "second")]
        until(lambda: all(here.queue.row(each.id, "north").state == "delivered" for each in asked))  # type: ignore[union-attr]
        until(lambda: held and node._inbox.qsize() == 1)
        newest = rotate(here)
        asked.append(here.ask(north, request=make_request(run="third", epsilon=0.01)))
        until(lambda: node._keys.key == newest)
        go.append("on")
        until(lambda: all(here.queue.digest(each.id, "north") for each in asked))


class Chain:
    """A silo that trusts `first`, and what it is told."""

    def __init__(self, silo: Silo) -> None:
        assert silo.settings.coordinator is not None
        self.silo, self.authority = silo, bytes.fromhex(silo.settings.coordinator.authority_sha256)
        self.made = [Ed25519PrivateKey.generate() for _ in range(4)]

    def step(self, old: Ed25519PrivateKey, new: Ed25519PrivateKey, number: int, authority: bytes = b"") -> Rotation:
        return endorse(old, public(new), number=number, authority_sha256=authority or self.authority)


def forged(what: str, chain: Chain, mine: Ed25519PrivateKey) -> list[Rotation]:
    a, b, c, d = chain.made
    true = chain.step(mine, a, 1)
    match what:
        case "unendorsed":
            return [Rotation(1, public(mine), public(b), chain.step(b, b, 1).signature)]
        case "altered new key":
            return [Rotation(1, true.old, public(b), true.signature)]
        case "altered number":
            return [Rotation(2, true.old, true.new, true.signature)]
        case "of another coordinator":
            return [chain.step(mine, a, 1, bytes(32))]
        case "another coordinator's chain":
            return [chain.step(b, c, 1), chain.step(c, d, 2)]
        case "a gap":
            return [true, chain.step(a, b, 3)]
        case "a step back":
            return [chain.step(mine, a, 5), chain.step(a, b, 4)]
        case "the same number twice":
            return [true, chain.step(a, b, 1)]
        case "one step of it forged":
            return [true, chain.step(a, b, 2), Rotation(3, public(b), public(c), bytes(64))]
        case _:
            return [chain.step(mine, a, 1), chain.step(mine, b, 2)]


@pytest.mark.parametrize(
    "what",
    [
        "unendorsed",
        "altered new key",
        "altered number",
        "of another coordinator",
        "another coordinator's chain",
        "a gap",
        "a step back",
        "the same number twice",
        "one step of it forged",
        "a fork",
    ],
)
def test_a_chain_that_does_not_hold(here: World, what: str) -> None:
    silo, mine = here.silo("north"), here.coordinator.request_key
    keys = keys_of(silo)
    with pytest.raises(IntegrityError, match="rotation"):
        keys.follow(forged(what, Chain(silo), mine))
    assert keys.key == keys_of(silo).key == public(mine) and not Files(silo.folder).request_keys.exists()


def test_an_older_rotation_is_not_replayed(here: World) -> None:
    silo, mine = here.silo("north"), here.coordinator.request_key
    chain, keys = Chain(silo), keys_of(silo)
    a, b, c, _ = chain.made
    rotations = [chain.step(mine, a, 1), chain.step(a, b, 2)]
    assert keys.follow(rotations)
    for replay in (rotations, rotations[:1], rotations[1:], [chain.step(a, c, 2)], [chain.step(a, c, 3)]):
        with pytest.raises(IntegrityError):  # the last two: whoever stole a key that was replaced
            keys.follow(replay)
    assert keys.key == keys_of(silo).key == public(b)
    assert not keys.follow([])


def test_what_lies_on_the_silos_disk_is_verified_again(here: World) -> None:
    silo, mine = here.silo("north"), here.coordinator.request_key
    chain, path = Chain(silo), Files(silo.folder).request_keys
    good = encode_chain([chain.step(mine, chain.made[0], 1)])
    for bad in (b"\xff", encode_chain(forged("unendorsed", chain, mine)), good[:-1]):
        path.write_bytes(bad)
        with pytest.raises(IntegrityError, match="restore it from a backup"):
            keys_of(silo)
    path.write_bytes(good)
    assert keys_of(silo).key == public(chain.made[0])


def test_a_forged_chain_over_the_wire_changes_nothing(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    north, mine = here.silo("north"), here.coordinator.request_key
    bad = encode_chain(forged("unendorsed", Chain(north), mine))
    monkeypatch.setattr(here.coordinator, "request_keys_after", lambda _known: bad)
    with running(north) as node:
        answered(here, north, "true")
        assert node._keys.key == public(mine)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        encode_chain([Rotation(1, bytes(31), bytes(32), bytes(64))]),
        encode_chain([Rotation(1, bytes(32), bytes(32), bytes(63))]),
        encode_chain([Rotation(0, bytes(32), bytes(32), bytes(64))]),
        encode_chain([Rotation(1, bytes(32), bytes(32), bytes(64))] * (MOST_ROTATIONS + 1)),
    ],
)
def test_what_is_no_chain(data: bytes) -> None:
    with pytest.raises(WireError):
        decode_chain(data)


def test_who_asks_for_keys_that_were_never_here_gets_none(here: World) -> None:
    north = here.silo("north")
    rotate(here)
    with here.channel(north) as channel:
        ask = channel.unary_unary("/dpdd.v1.Exchange/RequestKeys")
        assert ask(b"\x0a\x20" + bytes(32), timeout=60) == b""
        with pytest.raises(grpc.RpcError, match="32 bytes"):
            ask(b"", timeout=60)


class Killed(BaseException):
    """The process was killed here."""


def killed(*_: object, **__: object) -> None:
    raise Killed


@pytest.mark.parametrize("step", ["write_private", "write_atomically", "_replace", "sync_folder"])
def test_a_rotation_that_is_killed_is_finished_or_forgotten(
    here: World, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    north, folder, before = here.silo("north"), here.coordinator.folder, rotate(here)
    with here.channel(north) as channel:
        assert keys_of(north).refresh(channel)  # so that the next rotation that it takes is number 2
    owner = server_keys.RequestKeyFiles if step.startswith("_") else server_keys
    with monkeypatch.context() as patch:
        patch.setattr(owner, step, killed)
        with pytest.raises(Killed):
            here.coordinator.rotate_request_key()
    Coordinator(folder).close()
    assert not (folder / "state" / "requests.next.key").exists()
    after = Coordinator(folder)
    assert (public(after.request_key) == before) == (step in ("write_private", "write_atomically"))
    after.close()
    newest = rotate(here)
    with running(north):
        answered(here, north, "after")
        assert keys_of(north).key == newest


def test_a_silo_joins_again_after_rotations_and_not_after_an_unendorsed_key(
    here: World, capsys: pytest.CaptureFixture[str]
) -> None:
    north, address = here.silo("north"), f"127.0.0.1:{here.join_port}"
    newest = rotate(here, 2)
    join(Silo(north.folder), address, here.coordinator.enrol("north"))
    assert keys_of(north).key == newest
    assert server(["rotate-request-key", "--compromised", "--coordinator", str(here.coordinator.folder)]) == 0
    assert "join anew" in capsys.readouterr().out
    until(lambda: public(here.coordinator.request_key) != newest)
    with pytest.raises(DpddError, match=r"another request key.*no rotation leads there"):
        join(Silo(north.folder), address, here.coordinator.enrol("north"))
    assert keys_of(north).key == newest
    settings = north.folder / "silo.toml"
    settings.write_text(settings.read_text().partition("# Written by `dpdd-client join`")[0])
    token = here.coordinator.enrol("north")
    assert client(["join", address, str(token), "--silo", str(north.folder)]) == 0
    joined = Silo(north.folder)
    assert keys_of(joined).key == public(here.coordinator.request_key)
    with running(joined):
        answered(here, joined, "anew")


def test_two_rotations_at_a_time_are_refused(here: World) -> None:
    busy = pytest.raises(DpddError, match="another dpdd-server rotates")
    with here.coordinator._request_key_files._locked(), busy:
        here.coordinator.rotate_request_key()
    here.coordinator.rotate_request_key()
