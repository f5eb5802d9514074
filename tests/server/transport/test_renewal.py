"""Certificates are renewed over the connection that the old one opens, and a crash at no point locks anybody out."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from cryptography import x509

from dpdd.client.cli import main as client
from dpdd.client.silo import Silo
from dpdd.client.transport import node as node_module
from dpdd.client.transport import renewal
from dpdd.client.transport.channel import Files
from dpdd.client.transport.join import join
from dpdd.client.transport.renewal import renew
from dpdd.server.cli import main as server
from dpdd.server.transport import authority
from dpdd.server.transport.coordinator import Coordinator, fingerprint
from dpdd.server.transport.registry import UNUSED_DAYS, Registry, Unknown
from tests.server.transport.test_bounds import BEAT
from tests.server.transport.worlds import World, running, until, world


class Killed(BaseException):
    """The process was killed here."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("renewal")) as a_world:
        yield a_world


def renewed(here: World, silo: Silo) -> str:
    """Renew, and say which certificate the next connection shows."""
    with here.channel(silo) as channel:
        renew(Files(silo.folder), silo.settings.name, channel)
    return shown(silo)


def shown(silo: Silo) -> str:
    return fingerprint(Files(silo.folder).shown_certificate)


def connects(here: World, silo: Silo) -> bool:
    with here.channel(silo) as channel:
        return channel.unary_unary(BEAT)(b"", timeout=60) == b""


def certificates(here: World, silo: str) -> set[str]:
    rows = here.coordinator.registry._db.execute("SELECT fingerprint FROM certificates WHERE silo = ?", (silo,))
    return {row[0] for row in rows}


def test_the_old_certificate_is_good_until_the_new_one_is_used(here: World) -> None:
    silo = here.silo("north")
    old, key = shown(silo), Files(silo.folder).shown()[0]
    with here.channel(silo) as channel:
        renew(Files(silo.folder), "north", channel)
        assert channel.unary_unary(BEAT)(b"", timeout=60) == b""  # the old one, still
        assert certificates(here, "north") == {old, shown(silo)}
        assert connects(here, silo)
        assert certificates(here, "north") == {shown(silo)}
        with pytest.raises(grpc.RpcError, match="not in the coordinator's registry"):
            channel.unary_unary(BEAT)(b"", timeout=60)
    files = Files(silo.folder)
    assert files.shown()[0] != key and not files.next_key.exists()
    assert files.renewed.stat().st_mode & 0o777 == 0o600
    again = renewed(here, silo)
    assert again != old and connects(here, silo)


STEPS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {}


def step(kill: Callable[[pytest.MonkeyPatch], None]) -> Callable[[pytest.MonkeyPatch], None]:
    STEPS[kill.__name__] = kill
    return kill


def killed(*_: object, **__: object) -> None:
    raise Killed


@step
def before_the_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(renewal, "write_new", killed)


@step
def after_the_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(renewal, "_certificate_request", killed)


@step
def after_the_reply(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(renewal, "_checked", killed)


@step
def before_keeping(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(renewal, "write_private", killed)


@step
def after_keeping(patch: pytest.MonkeyPatch) -> None:
    unlink = Path.unlink

    def kill(path: Path, missing_ok: bool = False) -> None:
        if path.name == "next-key.pem":
            raise Killed
        unlink(path, missing_ok)

    patch.setattr(Path, "unlink", kill)


@pytest.mark.parametrize("where", STEPS)
@pytest.mark.parametrize("used", [False, True])
def test_a_silo_that_is_killed_goes_on(here: World, monkeypatch: pytest.MonkeyPatch, where: str, used: bool) -> None:
    silo = here.silo(f"{where}-{used}".replace("_", "-"))
    with monkeypatch.context() as patch:
        STEPS[where](patch)
        with pytest.raises(Killed):
            renewed(here, silo)
    if used:
        assert connects(here, silo)
    new = renewed(here, silo)
    assert len(certificates(here, silo.settings.name)) == 2  # what was interrupted is gone on with
    assert connects(here, silo) and certificates(here, silo.settings.name) == {new}
    assert not Files(silo.folder).next_key.exists()


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_coordinator_that_is_killed_goes_on(here: World, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    silo = here.silo(f"server-{where}")
    name, old = silo.settings.name, shown(silo)
    registry_renew = Registry.renew

    def kill(self: Registry, *arguments: object) -> bytes:
        if where == "after":  # it was written, and nobody heard of it
            registry_renew(self, *arguments)  # type: ignore[arg-type]
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(Registry, "renew", kill)
        with pytest.raises(grpc.RpcError):
            renewed(here, silo)
    assert shown(silo) == old and connects(here, silo)
    assert len(certificates(here, name)) == (2 if where == "after" else 1)
    new = renewed(here, silo)
    assert len(certificates(here, name)) == 2  # the one that was written is the one that came in the end
    assert connects(here, silo) and certificates(here, name) == {new}


def test_a_certificate_of_another_renewal_is_good_until_one_is_used(here: World) -> None:
    """`dpdd-client renew` beside a node that renews at the same time: whichever was written last is good."""
    silo = here.silo("twice")
    with here.channel(silo) as channel:
        renew(Files(silo.folder), "twice", channel)
        first = Files(silo.folder).renewed.read_bytes()
        renew(Files(silo.folder), "twice", channel)
    Files(silo.folder).renewed.write_bytes(first)
    assert connects(here, silo) and certificates(here, "twice") == {shown(silo)}


def test_a_node_renews_in_time_and_goes_on(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_module, "BEAT_SECONDS", 0.2)
    silo = here.silo("punctual")
    old = shown(silo)
    with running(silo) as node:
        until(lambda: node._connected)
        late = datetime.now(UTC) + timedelta(days=300)
        node._upkeep._clock = lambda: late
        until(lambda: shown(silo) != old)
        until(lambda: certificates(here, "punctual") == {shown(silo)})  # it connected anew, by itself
        request = here.ask(silo)
        until(lambda: here.queue.digest(request.id, "punctual"))
        assert node._upkeep._tried == late  # and once an hour is enough
        assert not node.errors  # type: ignore[attr-defined]


def test_a_node_notices_a_renewal_by_hand(
    here: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(node_module, "BEAT_SECONDS", 0.2)
    silo = here.silo("by-hand")
    with running(silo) as node:
        until(lambda: node._connected)
        assert client(["renew", "--silo", str(silo.folder), "--address", f"127.0.0.1:{here.port}"]) == 0
        until(lambda: certificates(here, "by-hand") == {shown(silo)})
        assert not node.errors  # type: ignore[attr-defined]
    assert "the old one is worth nothing then" in capsys.readouterr().out


def test_joining_again_replaces_a_renewed_certificate(here: World) -> None:
    silo = here.silo("again")
    renewed(here, silo)
    connects(here, silo)
    join(Silo(silo.folder), f"127.0.0.1:{here.join_port}", here.coordinator.enrol("again"))
    assert not Files(silo.folder).renewed.exists()
    assert connects(here, silo) and certificates(here, "again") == {shown(silo)}


def test_an_unused_certificate_is_forgotten_with_time(tmp_path: Path) -> None:
    now = [datetime.now(UTC)]
    registry = Registry(tmp_path / "registry.sqlite", clock=lambda: now[0])
    registry.enrol("north", "token", timedelta(hours=1))
    made = iter(f"{number}" for number in range(100))

    def certify(_silo: str) -> tuple[str, bytes, str]:
        name = next(made)
        return name, name.encode(), "2999-01-01T00:00:00+00:00"

    registry.redeem("token", bytes(32), certify, b"")
    for key in (b"a", b"b"):
        registry.renew("0", key, certify)
    now[0] += timedelta(days=UNUSED_DAYS + 1)
    registry.renew("0", b"c", certify)
    for forgotten in "12":
        with pytest.raises(Unknown):
            registry.holder(forgotten)
    assert registry.holder("0") == registry.holder("3") == "north"
    registry.close()


def test_a_registry_from_before_there_were_renewals(tmp_path: Path) -> None:
    here = Coordinator.initialise(tmp_path / "hub")
    here.registry._db.execute("DROP TABLE renewals")
    here.close()
    again = Coordinator(tmp_path / "hub")
    assert again.registry._db.execute("SELECT count(*) FROM renewals").fetchone() == (0,)
    again.close()


def test_the_server_shows_its_new_certificate_without_a_restart(
    here: World, capsys: pytest.CaptureFixture[str]
) -> None:
    def seen(port: int) -> bytes:
        return ssl.get_server_certificate(("127.0.0.1", port), timeout=60).encode()

    before = seen(here.join_port)
    silo = here.silo("witness")
    with here.channel(silo) as channel:
        channel.unary_unary(BEAT)(b"", timeout=60)
        assert server(["renew", "--coordinator", str(here.coordinator.folder)]) == 0
        assert "cannot be renewed" in capsys.readouterr().out
        after = x509.load_pem_x509_certificate(seen(here.join_port))
        assert after == here.coordinator.server_certificate != x509.load_pem_x509_certificate(before)
        assert channel.unary_unary(BEAT)(b"", timeout=60) == b""  # who is connected stays
    assert connects(here, silo)


def test_a_server_renews_its_certificate_in_time(tmp_path: Path) -> None:
    here = Coordinator.initialise(tmp_path / "hub")
    first = here.server_certificate
    here.keep_up(datetime.now(UTC) + timedelta(days=400))
    assert here.server_certificate == first
    here.keep_up(datetime.now(UTC) + timedelta(days=500))
    assert here.server_certificate != first
    here.close()


def test_status_warns_of_whatever_ends_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def notes() -> list[str]:
        capsys.readouterr()
        assert server(["status", "--coordinator", str(tmp_path / "coordinator"), "--json"]) == 0
        warnings: list[str] = json.loads(capsys.readouterr().out)["warnings"]
        return [line.partition(":")[0].partition(",")[0] for line in warnings]

    with world(tmp_path) as here:
        here.silo("north")
        assert notes() == []
    for name in ("AUTHORITY_DAYS", "SERVER_DAYS", "SILO_DAYS"):
        monkeypatch.setattr(authority, name, 59.5)
    (tmp_path / "coordinator").rename(tmp_path / "before")
    monkeypatch.setattr(authority, "_CLOCKS_DIFFER", timedelta(days=120))  # a third of that life is about 60 days
    hub = Coordinator.initialise(tmp_path / "coordinator")
    silo = hub.authority.silo_certificate("north", hub.server_certificate.public_key(), timedelta(days=59.5))  # type: ignore[arg-type]
    hub.enrol("north", timedelta(hours=1))
    hub.registry._db.execute("UPDATE silos SET joined = '2026', release_key = x'00'")
    der = silo.public_bytes(authority.serialization.Encoding.DER)
    hub.registry._db.execute("INSERT INTO certificates VALUES (?, 'north', ?, '')", (fingerprint(silo), der))
    hub.close()
    assert notes() == [
        f"the certificate of {who} expires in 59 days" for who in ("the server", "the authority", "silo north")
    ]
