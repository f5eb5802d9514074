"""Everything that must be refused: with a reason of its own, a line in the log, and nothing stored or spent."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpdd.client.silo import Silo
from dpdd.client.transport.channel import CHANNEL, Files, explain
from dpdd.common.errors import IntegrityError, WireError
from dpdd.common.wire.answer import Reason, Refusal, decode_answer, encode_answer
from dpdd.common.wire.exchange import Manifest, Token, open_request, parts, sign_request
from dpdd.common.wire.request import decode_request
from dpdd.server.run.store import Store
from dpdd.server.transport.authority import Authority, private_pem
from dpdd.server.transport.coordinator import Coordinator, expiry, fingerprint
from dpdd.server.transport.limits import CallRates
from dpdd.server.transport.registry import Registry
from dpdd.server.transport.service import ExchangeServer
from dpdd.v1 import exchange_pb2, refusal_pb2, release_pb2, transfer_pb2
from tests.client.silos import make_request, make_silo
from tests.server.transport.worlds import World, entries, manifest_for, running, sign_payload, until, world

STATUS, UPLOAD = "/dpdd.v1.Exchange/Status", "/dpdd.v1.Exchange/Upload"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("hostile")) as hostile_world:
        hostile_world.server._calls.rates = CallRates(1e6, 10**6)  # or most of what is sent here is refused unread
        yield hostile_world


@pytest.fixture(scope="module")
def north(here: World) -> Silo:
    return here.silo("north")


@pytest.fixture(scope="module")
def south(here: World) -> Silo:
    return here.silo("south")


@pytest.fixture(autouse=True)
def nothing_is_stored(here: World, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.INFO, "dpdd.exchange")
    yield
    assert here.releases() == [] and list(here.queue.partial.iterdir()) == []


def joined(here: World) -> list[str]:
    return [silo.name for silo in here.coordinator.registry.silos() if silo.joined and not silo.revoked]


def refused(channel: grpc.Channel, method: str, data: bytes | list[bytes]) -> tuple[grpc.StatusCode, str]:
    """The status and the sentence with which the coordinator refuses."""
    with pytest.raises(grpc.RpcError) as caught:
        if isinstance(data, list):
            channel.stream_unary(method)(iter(data), timeout=20)
        elif method.endswith("Requests"):
            list(channel.unary_stream(method)(data, timeout=20))
        else:
            channel.unary_unary(method)(data, timeout=20)
    return caught.value.code(), caught.value.details() or ""


def credentials(authority: Authority, key: ec.EllipticCurvePrivateKey, certificate: object) -> grpc.ChannelCredentials:
    pem = certificate.public_bytes(serialization.Encoding.PEM)  # type: ignore[attr-defined]
    return grpc.ssl_channel_credentials(authority.pem, private_pem(key), pem)


def tls_channel(here: World, issuer: Authority, lifetime: timedelta = timedelta(days=1)) -> grpc.Channel:
    """A channel whose client certificate says `north`, signed by `issuer` and not in the registry."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = issuer.silo_certificate("north", key.public_key(), lifetime)
    mutual = credentials(here.coordinator.authority, key, certificate)
    return grpc.secure_channel(f"127.0.0.1:{here.port}", mutual, CHANNEL)


def test_a_certificate_of_our_authority_that_is_not_registered(
    here: World, north: Silo, caplog: pytest.LogCaptureFixture
) -> None:
    with tls_channel(here, here.coordinator.authority) as channel:
        for method in ("Requests", "Status", "Refuse", "Heartbeat"):
            code, why = refused(channel, f"/dpdd.v1.Exchange/{method}", b"")
            assert code is grpc.StatusCode.UNAUTHENTICATED and "not in the coordinator's registry" in why
        code, why = refused(channel, UPLOAD, [b""])
        assert code is grpc.StatusCode.UNAUTHENTICATED and "not in the coordinator's registry" in why
    assert "refused Upload by somebody" in caplog.text


def test_no_other_method_is_served_without_a_certificate(here: World) -> None:
    root = grpc.ssl_channel_credentials(here.coordinator.authority.pem)
    with grpc.secure_channel(f"127.0.0.1:{here.join_port}", root, CHANNEL) as channel:
        for method in ("Requests", "Status", "Refuse", "Heartbeat"):
            assert refused(channel, f"/dpdd.v1.Exchange/{method}", b"")[0] is grpc.StatusCode.UNIMPLEMENTED
        assert refused(channel, UPLOAD, [b""])[0] is grpc.StatusCode.UNIMPLEMENTED
        code, why = refused(channel, "/dpdd.v1.Enrolment/Join", b"")
        assert code is grpc.StatusCode.INVALID_ARGUMENT and "certificate request" in why
    with grpc.secure_channel(f"127.0.0.1:{here.port}", root, CHANNEL) as channel:
        assert refused(channel, STATUS, b"")[0] is grpc.StatusCode.UNAVAILABLE


def test_a_revoked_silo(here: World, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    west = here.silo("west")
    with running(west) as node, here.channel(west) as channel:
        until(lambda: any(s.name == "west" and s.doing == "connected" for s in here.coordinator.registry.silos()))
        Coordinator(here.coordinator.folder).registry.revoke("west")  # as another process does
        code, why = refused(channel, STATUS, b"")
        assert code is grpc.StatusCode.PERMISSION_DENIED and why == "silo west is revoked"
        until(lambda: node.errors)  # type: ignore[attr-defined]
    assert "silo west is revoked" in str(node.errors[0])  # type: ignore[attr-defined]
    assert "silo west is revoked" in caplog.text
    assert "west" not in here.coordinator.registry.roster().keys


def test_a_certificate_that_expires_while_connected(tmp_path: Path) -> None:
    authority = Authority.create()
    certificate = authority.silo_certificate("north", ec.generate_private_key(ec.SECP256R1()).public_key())
    token, der = Token(bytes(24), bytes(32)), certificate.public_bytes(serialization.Encoding.DER)
    now = [datetime.now(UTC)]
    registry = Registry(tmp_path / "registry.sqlite", clock=lambda: now[0])
    registry.enrol("north", token.hash, timedelta(hours=1))
    registry.redeem(token.hash, bytes(32), lambda _: (fingerprint(certificate), der, expiry(certificate)), b"key")
    assert registry.holder(fingerprint(certificate)) == "north"
    now[0] += timedelta(days=800)
    with pytest.raises(IntegrityError, match="expired"):
        registry.holder(fingerprint(certificate))
    registry.close()


# A silo that lies


def signed_by(silo: Silo, **changes: object) -> bytes:
    """A release of this silo that never goes through its own node (another budget pays for it)."""
    twin = make_silo(silo.folder.parent / "made" / str(len(changes)) / silo.settings.name)
    answer = twin.answer(make_request(**changes).encode())  # type: ignore[arg-type]
    payload = release_pb2.SignedRelease.FromString(answer.data).release  # type: ignore[union-attr]
    return sign_payload(silo, payload)


def upload_parts(data: bytes, request_id: str, tmp_path: Path, chunk: int = 100) -> list[bytes]:
    path = tmp_path / "payload"
    path.write_bytes(data)
    with path.open("rb") as file:
        return list(parts(manifest_for(data, request_id), file, 0, chunk))


def altered_chunk(part: bytes, **changes: object) -> bytes:
    message = exchange_pb2.UploadPart.FromString(part)
    for name, value in changes.items():
        setattr(message.chunk, name, value)
    return message.SerializeToString()


@pytest.mark.parametrize(
    ("what", "word"),
    [
        ("replayed", "replayed chunk"),
        ("missing", "a chunk is missing"),
        ("altered", "a chunk was altered"),
        ("truncated", "a truncated chunk: it has 99 of 100 bytes"),
        ("empty", "1 to"),
        ("beyond", "beyond the size"),
        ("of another payload", "another payload"),
        ("two manifests", "one manifest"),
        ("no manifest", "starts with its manifest"),
        ("ended early", "ended after"),
        ("another hash", "does not have the SHA-256"),
        ("too large", "payload has 1 to"),
    ],
)
def test_chunks(
    here: World, north: Silo, tmp_path: Path, what: str, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    request = here.ask(north)
    data = signed_by(north)
    sent = upload_parts(data, request.id, tmp_path)
    match what:
        case "replayed":
            sent[3:3] = [sent[2]]
        case "missing":
            del sent[2]
        case "altered":
            body = exchange_pb2.UploadPart.FromString(sent[2]).chunk.data
            sent[2] = altered_chunk(sent[2], data=bytes([body[0] ^ 1]) + body[1:])
        case "truncated":
            sent[2] = altered_chunk(sent[2], data=exchange_pb2.UploadPart.FromString(sent[2]).chunk.data[:-1])
        case "empty":
            sent[2] = altered_chunk(sent[2], data=b"", size=0)
        case "beyond":
            manifest = Manifest(manifest_for(data, request.id).sha256, len(data) - 1, request.id)
            sent[0] = exchange_pb2.UploadPart(manifest=manifest.to_wire()).SerializeToString()
        case "of another payload":
            sent[2] = altered_chunk(sent[2], payload_sha256=bytes(32))
        case "two manifests":
            sent[1:1] = [sent[0]]
        case "no manifest":
            del sent[0]
        case "ended early":
            del sent[-1]
        case "another hash":
            bad = Manifest("ab" * 32, len(data), request.id)
            sent[0] = exchange_pb2.UploadPart(manifest=bad.to_wire()).SerializeToString()
            sent[1:] = [altered_chunk(part, payload_sha256=bytes.fromhex("ab" * 32)) for part in sent[1:]]
        case "too large":
            bad = Manifest("ab" * 32, 1 << 40, request.id)
            sent = [exchange_pb2.UploadPart(manifest=bad.to_wire()).SerializeToString()]
    with here.channel(north) as channel:
        _, why = refused(channel, UPLOAD, sent)
    assert word in why, why
    assert "refused Upload by silo north from ipv4:127.0.0.1" in caplog.text and word in caplog.text
    for partial in here.partials():
        partial.unlink()


def lying_payload(what: str, north: Silo, south: Silo) -> bytes:
    match what:
        case "signed by another silo":
            return signed_by(south)
        case "another silo's name":
            payload = release_pb2.Release.FromString(release_pb2.SignedRelease.FromString(signed_by(north)).release)
            payload.silo = "south"
            return sign_payload(north, payload.SerializeToString())
        case "another request":
            return signed_by(north, run="another")
        case "altered after signing":
            message = release_pb2.SignedRelease.FromString(signed_by(north))
            payload = release_pb2.Release.FromString(message.release)
            payload.guarantee.epsilon = 0.001
            message.release = payload.SerializeToString()
            return message.SerializeToString()
        case "wrong sizes":
            payload = release_pb2.Release.FromString(release_pb2.SignedRelease.FromString(signed_by(north)).release)
            payload.arrays[0].shape[0] += 1
            return sign_payload(north, payload.SerializeToString())
        case _:
            return b"no release at all, but of some length"


@pytest.mark.parametrize(
    ("what", "word"),
    [
        ("signed by another silo", "another key than this silo's"),
        ("another silo's name", "a release by silo south, sent by silo north"),
        ("another request", "for another request"),
        ("altered after signing", "signature does not match"),
        ("wrong sizes", "announces"),
        ("not a release", "not a message"),
    ],
)
def test_a_payload_that_lies(
    here: World, north: Silo, south: Silo, tmp_path: Path, what: str, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    request = here.ask(north, south)
    with here.channel(north) as channel:
        _, why = refused(channel, UPLOAD, upload_parts(lying_payload(what, north, south), request.id, tmp_path))
    assert word in why and word in caplog.text, why


def test_speaking_for_another_or_of_what_was_not_asked(here: World, north: Silo, south: Silo, tmp_path: Path) -> None:
    asked = here.ask(north)
    not_asked = here.ask(south, request=make_request(run="only-south"))
    with here.channel(north) as channel:
        refusal = Refusal(asked.id, "south", Reason.DENIED, "no")
        wire = refusal_pb2.Answer.FromString(encode_answer(refusal)).refusal.SerializeToString()
        assert "sent by silo north" in refused(channel, "/dpdd.v1.Exchange/Refuse", wire)[1]
        refusal = Refusal(not_asked.id, "north", Reason.DENIED, "no")
        wire = refusal_pb2.Answer.FromString(encode_answer(refusal)).refusal.SerializeToString()
        assert "was not put to silo north" in refused(channel, "/dpdd.v1.Exchange/Refuse", wire)[1]
        beat = exchange_pb2.Beat(in_trouble_with=bytes.fromhex(not_asked.id)).SerializeToString()
        assert "was not put to silo north" in refused(channel, "/dpdd.v1.Exchange/Heartbeat", beat)[1]
        data = signed_by(south, run="only-south")
        assert "was not put to" in refused(channel, UPLOAD, upload_parts(data, not_asked.id, tmp_path))[1]
    for request, silo in ((asked, "south"), (not_asked, "north")):
        assert here.queue.row(request.id, silo) is None or here.queue.row(request.id, silo).state != "refused"  # type: ignore[union-attr]


def test_a_second_different_release_does_not_replace_the_first(tmp_path: Path) -> None:
    with world(tmp_path) as mine:
        north = mine.silo("north")
        request = mine.ask(north)
        first, second = signed_by(north), sign_payload(north, b"")
        with mine.channel(north) as channel:
            channel.stream_unary(UPLOAD)(iter(upload_parts(first, request.id, tmp_path)))
            for call, data in ((STATUS, manifest_for(second, request.id).to_wire().SerializeToString()),):
                assert "second, different release" in refused(channel, call, data)[1]
            assert "second, different" in refused(channel, UPLOAD, upload_parts(second, request.id, tmp_path))[1]
            again = channel.stream_unary(UPLOAD)(iter(upload_parts(first, request.id, tmp_path)[:1]))
        assert transfer_pb2.TransferStatus.FromString(again).complete
        (fork,) = mine.coordinator.ledger_positions.forks("north")
        assert fork == f"silo north made two different releases for request {request.id[:12]}"
        store = Store(mine.queue._folder)
        assert store.warnings(["north"]) == [fork]
        store.close()
        assert [mine.queue.read(name) for name in mine.releases()] == [first]


# A coordinator that is not the one


def test_a_request_that_our_coordinator_did_not_sign(tmp_path: Path) -> None:
    with world(tmp_path) as mine:
        north = mine.silo("north")
        mine.coordinator.request_key = Ed25519PrivateKey.generate()  # whoever broke into the connection has no key
        request = mine.ask(north)
        with running(north):
            until(lambda: (row := mine.queue.row(request.id, "north")) and row.state == "refused")
        row = mine.queue.row(request.id, "north")
        assert row is not None and row.refusal is not None
        answer = decode_answer(row.refusal)
        assert isinstance(answer, Refusal) and answer.reason is Reason.WRONG_COORDINATOR
        assert entries(north) == ["open"] and north.outbox.ids() == []


def connection_error(silo: Silo, mine: World, port: int) -> str:
    with mine.channel(silo, f"127.0.0.1:{port}") as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(STATUS)(b"", timeout=10)
    return explain(caught.value)


def test_another_coordinator_at_the_address(tmp_path: Path) -> None:
    with world(tmp_path / "a") as mine, world(tmp_path / "b") as other:
        north = mine.silo("north")
        other.silo("north")
        other.ask(north)
        assert "not the coordinator that this silo joined" in connection_error(north, mine, other.port)
        with running(north, address=f"127.0.0.1:{other.port}") as node:
            until(lambda: "not the coordinator" in node._last_line)
        assert entries(north) == ["open"]


def test_a_silo_cannot_pose_as_the_coordinator(tmp_path: Path) -> None:
    with world(tmp_path) as mine:
        north, south = mine.silo("north"), mine.silo("south")
        files = Files(south.folder)
        pose = grpc.server(ThreadPoolExecutor(2))
        port = pose.add_secure_port(
            "127.0.0.1:0", grpc.ssl_server_credentials([(files.private(), files.certificate.read_bytes())])
        )
        pose.start()
        assert "not the coordinator that this silo joined" in connection_error(north, mine, port)
        pose.stop(0)


# Noise


def mutated(chance: random.Random, valid: bytes) -> bytes:
    data = bytearray(valid)
    for _ in range(chance.randint(1, 5)):
        match chance.randrange(4):
            case 0 if data:
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            case 1 if data:
                del data[chance.randrange(len(data)) :]
            case 2:
                data[chance.randrange(len(data) + 1) : 0] = chance.randbytes(chance.randint(1, 20))
            case _:
                return chance.randbytes(chance.randint(0, 200))
    return bytes(data)


@pytest.mark.timeout(300)
def test_ten_thousand_fuzzed_messages(here: World, north: Silo, tmp_path: Path) -> None:
    """The server answers each with a status of its own choosing, stores nothing and is as well afterwards as before."""
    members = joined(here)
    seed = int.from_bytes(os.urandom(4), "big")
    chance = random.Random(seed)
    request = here.ask(north)
    data = signed_by(north)
    sent = upload_parts(data, request.id, tmp_path, 400)
    refusal = Refusal("00" * 32, "north", Reason.DENIED, "no")
    valid = {
        "Status": manifest_for(data, "00" * 32).to_wire().SerializeToString(),
        "Refuse": refusal_pb2.Answer.FromString(encode_answer(refusal)).refusal.SerializeToString(),
        "Heartbeat": exchange_pb2.Beat(doing="x", in_trouble_with=bytes(32)).SerializeToString(),
    }
    join_request = exchange_pb2.JoinRequest(
        token=str(Token(bytes(24), bytes(32))), certificate_request=b"c" * 100, release_public_key=bytes(32)
    ).SerializeToString()
    root = grpc.ssl_channel_credentials(here.coordinator.authority.pem)
    expected = {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.DATA_LOSS,
        grpc.StatusCode.UNAUTHENTICATED,
    }
    logger = logging.getLogger("dpdd.exchange")
    logger.setLevel(logging.CRITICAL)
    done, answered = 0, 0
    try:
        with (
            here.channel(north) as channel,
            grpc.secure_channel(f"127.0.0.1:{here.join_port}", root, CHANNEL) as newcomer,
        ):
            while done < 10_000:
                calls: list[grpc.Future] = []
                for _ in range(100):
                    kind = chance.choice([*valid, "Upload", "Join", "Requests"])
                    if kind == "Upload":
                        message = [mutated(chance, part) if chance.random() < 0.5 else part for part in sent]
                        if message == sent:
                            continue
                        calls.append(channel.stream_unary(UPLOAD).future(iter(message), timeout=60))
                        calls[-1].exception()  # one after the other: a newer upload ends an older one
                        done += len(message)
                    elif kind == "Join":
                        method = newcomer.unary_unary("/dpdd.v1.Enrolment/Join")
                        calls.append(method.future(mutated(chance, join_request), timeout=60))
                        done += 1
                    elif kind == "Requests":
                        noise = b"\x0f" + chance.randbytes(9)  # never valid, so the stream ends by itself
                        with pytest.raises(grpc.RpcError):
                            list(channel.unary_stream("/dpdd.v1.Exchange/Requests")(noise, timeout=60))
                        done += 1
                    else:
                        method = channel.unary_unary(f"/dpdd.v1.Exchange/{kind}")
                        calls.append(method.future(mutated(chance, valid[kind]), timeout=60))
                        done += 1
                for call in calls:
                    error = call.exception()
                    if error is None:
                        answered += 1  # harmless after all, such as a heartbeat with another text
                    else:
                        assert error.code() in expected, (seed, error.code(), error.details())
                        assert 0 < len(error.details()) < 1100 and error.details().isprintable(), seed
    finally:
        logger.setLevel(logging.INFO)
    for partial in here.partials():
        partial.unlink()
    assert here.releases() == [] and here.queue.row(request.id, "north").state in ("asked", "delivered")  # type: ignore[union-attr]
    assert "north" in members and joined(here) == members
    with here.channel(north) as channel:
        manifest = manifest_for(data, request.id).to_wire().SerializeToString()
        assert channel.unary_unary(STATUS)(manifest, timeout=10)
    assert answered < done / 5


def test_fuzzed_envelopes_and_bytes_on_the_wire(here: World, north: Silo, tmp_path: Path) -> None:
    chance = random.Random(1)
    key = Ed25519PrivateKey.generate()
    valid = sign_request(make_request().encode(), key)
    for _ in range(3000):
        envelope = mutated(chance, valid)
        try:
            opened = open_request(envelope, key.public_key().public_bytes_raw())
        except WireError:
            continue
        assert not opened.signed or (opened.request, opened.rehearsal) == (make_request().encode(), b"")
        with contextlib.suppress(WireError):
            decode_request(opened.request)
    for port in (here.port, here.join_port):
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", port)) as raw:
                raw.sendall(chance.randbytes(chance.randint(1, 3000)))
    with here.channel(north) as channel:
        assert channel.unary_unary("/dpdd.v1.Exchange/Heartbeat")(b"", timeout=10) == b""


# What TLS turns away, in the log of the real command


@pytest.mark.timeout(120)
def test_the_command_logs_what_tls_turned_away(tmp_path: Path) -> None:
    coordinator = Coordinator.initialise(tmp_path / "coordinator")
    coordinator.enrol("north")
    scenario = tmp_path / "small.toml"
    scenario.write_text('name = "small"\n[data]\ndataset = "fashion-slice"\n[method]\nname = "dp-merf"\n')
    command = [sys.executable, "-m", "dpdd.server.cli", "run", str(scenario), "--port", "0", "--join-port", "0"]
    process = subprocess.Popen(
        [*command, "--coordinator", str(tmp_path / "coordinator")], stderr=subprocess.PIPE, text=True
    )
    try:
        until(lambda: coordinator.serving() is not None, 60.0)
        serving = coordinator.serving()
        assert serving is not None and serving["host"] == "127.0.0.1"
        key = ec.generate_private_key(ec.SECP256R1())
        ours, theirs = coordinator.authority, Authority.create()
        shown = [
            theirs.silo_certificate("north", key.public_key()),
            ours.silo_certificate("north", key.public_key(), timedelta(days=-1)),
            None,
        ]
        for certificate in shown:
            shown = grpc.ssl_channel_credentials(ours.pem)
            if certificate is not None:
                shown = credentials(ours, key, certificate)
            with grpc.secure_channel(f"127.0.0.1:{serving['port']}", shown, CHANNEL) as channel:
                assert refused(channel, STATUS, b"")[0] is grpc.StatusCode.UNAVAILABLE
        with socket.create_connection(("127.0.0.1", serving["port"])) as raw:
            raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
            raw.settimeout(5)
            raw.recv(100)
        expected = [
            "its certificate is of another authority",
            "its certificate has expired",
            "it shows no certificate",
            "it does not speak TLS",
        ]
        until(lambda: all(words in coordinator.log_file.read_text() for words in expected))
    finally:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "refused a connection: its certificate has expired" in err
    assert not coordinator.serving_file.exists()
    assert json.loads(json.dumps(coordinator.registry.silos()[0].joined)) is None


def test_two_servers_do_not_share_a_port(here: World) -> None:
    from dpdd.common.errors import ConfigError
    from dpdd.server.transport.service import Address

    with pytest.raises(ConfigError, match="in use"):
        ExchangeServer(here.coordinator, here.queue, Address("127.0.0.1", here.port, 0))
    assert threading.active_count() < 200
