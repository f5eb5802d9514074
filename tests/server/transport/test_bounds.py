"""What one caller can take from the others: threads, upload slots, time; and what a revoked one can still do."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import pytest

from dpdd.client.silo import Silo
from dpdd.client.transport.channel import CHANNEL
from dpdd.client.transport.upload import manifest_of, upload
from dpdd.common.wire.exchange import CHUNK, Manifest, parts
from dpdd.server.transport import calls, service
from dpdd.server.transport.uploads import Upload
from dpdd.v1 import exchange_pb2, transfer_pb2
from tests.server.transport.worlds import World, big_release, big_request, manifest_for, until, world

UPLOAD, BEAT = "/dpdd.v1.Exchange/Upload", "/dpdd.v1.Exchange/Heartbeat"
REQUESTS, JOIN = "/dpdd.v1.Exchange/Requests", "/dpdd.v1.Enrolment/Join"


class Held:
    """Messages that come when they are let go."""

    def __init__(self, *first: bytes, then: Iterable[bytes] = ()) -> None:
        self.go = threading.Event()
        self._all = self._in_turn(first, then)

    def _in_turn(self, first: tuple[bytes, ...], then: Iterable[bytes]) -> Iterator[bytes]:
        yield from first
        self.go.wait(60.0)
        yield from then

    def __iter__(self) -> Held:
        return self

    def __next__(self) -> bytes:
        return next(self._all)


def payload(here: World, silo: Silo, size: int = 2 * CHUNK) -> tuple[Path, Manifest]:
    """A release that `silo` was asked for, in a file."""
    request = here.ask(silo, request=big_request(size))
    path = here.folder / f"{silo.settings.name}.payload"
    path.write_bytes(big_release(silo, request))
    return path, manifest_of(path, request.id)


def messages(path: Path, manifest: Manifest, chunk: int = CHUNK) -> list[bytes]:
    with path.open("rb") as file:
        return list(parts(manifest, file, 0, chunk))


@contextmanager
def half_an_upload(here: World, silo: Silo) -> Iterator[tuple[grpc.Future, Held]]:
    """A call whose manifest and first chunk have arrived; the rest is held back."""
    sent = messages(*payload(here, silo))
    with here.channel(silo) as channel:
        held = Held(*sent[:2], then=sent[2:])
        call = channel.stream_unary(UPLOAD).future(held)
        until(lambda: here.partials() and here.partials()[0].stat().st_size == CHUNK)
        yield call, held


def newcomer(here: World) -> grpc.Channel:
    root = grpc.ssl_channel_credentials(here.coordinator.authority.pem)
    return grpc.secure_channel(f"127.0.0.1:{here.join_port}", root, CHANNEL)


def test_who_has_no_certificate_takes_no_thread_from_the_silos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MOST_JOINING", 4)
    monkeypatch.setattr(calls, "FIRST_MESSAGE_SECONDS", 8.0)  # no thread is free again before we have looked
    with world(tmp_path) as here, newcomer(here) as stranger:
        silo = here.silo("north")
        hanging = [stranger.stream_unary(JOIN).future(Held()) for _ in range(12)]
        until(lambda: sum(call.done() for call in hanging) == 8)
        refused = [call for call in hanging if call.done()]
        assert {call.exception().code() for call in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        with here.channel(silo) as channel:
            assert channel.unary_unary(BEAT)(b"", timeout=5) == b""
        held = [call for call in hanging if call not in refused]
        assert {call.exception(timeout=30).code() for call in held} == {grpc.StatusCode.CANCELLED}
        here.silo("south")  # and now there is room again


def test_a_silo_has_so_many_calls_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(calls, "FIRST_MESSAGE_SECONDS", 3.0)
    with world(tmp_path) as here, ExitStack() as stack:
        greedy, other = here.silo("greedy"), here.silo("other")
        open_channels = [stack.enter_context(here.channel(greedy)) for _ in range(3)]
        hanging = [channel.stream_unary(BEAT).future(Held()) for channel in open_channels for _ in range(16)]
        until(lambda: sum(call.done() for call in hanging) == 48 - calls.MOST_CALLS)
        refused = next(call for call in hanging if call.done()).exception()
        assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "32 calls going on" in refused.details()
        with here.channel(other) as channel:
            assert channel.unary_unary(BEAT)(b"", timeout=5) == b""
        for call in hanging:
            assert call.exception(timeout=20) is not None  # those that say nothing are ended
        assert "said nothing for too long" in caplog.text
        assert open_channels[0].unary_unary(BEAT)(b"", timeout=5) == b""


def test_revoking_ends_an_upload_that_is_going_on(tmp_path: Path) -> None:
    with world(tmp_path) as here:
        with half_an_upload(here, here.silo("west")) as (call, held):
            here.coordinator.registry.revoke("west")
            error = call.exception(timeout=10)  # although it sends nothing
            assert error.code() is grpc.StatusCode.CANCELLED
            until(lambda: not here.partials())
            held.go.set()
        assert here.releases() == []


def test_a_silo_that_is_revoked_before_its_last_chunk_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service, "_TICK", 60.0)  # nobody looks in between
    with world(tmp_path) as here:
        with half_an_upload(here, here.silo("west")) as (call, held):
            here.coordinator.registry.revoke("west")
            held.go.set()
            error = call.exception(timeout=10)
        assert (error.code(), error.details()) == (grpc.StatusCode.PERMISSION_DENIED, "silo west is revoked")
        assert here.releases() == [] and here.partials() == []
        assert "refused Upload by silo west" in caplog.text


def test_one_silo_has_one_upload_whatever_it_names_it(tmp_path: Path) -> None:
    with world(tmp_path) as here:
        silo = here.silo("north")
        path, manifest = payload(here, silo)
        other = tmp_path / "other"
        other.write_bytes(bytes(2 * CHUNK))
        with here.channel(silo) as channel:
            sent = messages(other, manifest_for(other.read_bytes(), manifest.request_id))
            call = channel.stream_unary(UPLOAD).future(Held(*sent[:2]))
            until(lambda: here.partials() and here.partials()[0].stat().st_size == CHUNK)
            upload(channel, path, manifest, lambda _: None)
            assert call.exception(timeout=10).code() is grpc.StatusCode.CANCELLED
        assert here.queue.read(here.releases()[0]) == path.read_bytes() and here.partials() == []


def test_who_comes_back_waits_until_what_had_arrived_is_put_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    going, gate, order = threading.Event(), threading.Event(), list[str]()
    close = Upload.close

    def slowly_closed(upload: Upload) -> None:
        going.set()
        gate.wait(60.0)
        close(upload)
        order.append("put away")

    monkeypatch.setattr(Upload, "close", slowly_closed)
    with world(tmp_path) as here:
        silo = here.silo("north")
        with half_an_upload(here, silo), here.channel(silo) as again:
            name, digest = here.partials()[0].name.split(".")[1:]
            asked = Manifest(digest, (tmp_path / "north.payload").stat().st_size, name).to_wire().SerializeToString()
            status = again.unary_unary("/dpdd.v1.Exchange/Status").future(asked, timeout=120)
            status.add_done_callback(lambda _: order.append("status"))
            assert going.wait(60.0)
            for _ in range(5):
                again.unary_unary(BEAT)(b"", timeout=60)  # so long that it would be answered if it did not wait
            gate.set()
            assert transfer_pb2.TransferStatus.FromString(status.result()).received == CHUNK
        until(lambda: len(order) >= 2)
        assert order[0] == "put away"


def test_who_waits_for_a_slot_and_hangs_up_is_not_waited_for(tmp_path: Path) -> None:
    with world(tmp_path) as here:
        first, second = here.silo("first"), here.silo("second")
        (path, manifest), (path2, manifest2) = payload(here, first), payload(here, second)
        here.server._uploads._slots = asyncio.Semaphore(1)
        sent = messages(path, manifest)
        with here.channel(first) as channel, here.channel(second) as again:
            held = Held(*sent[:2], then=sent[2:])
            going = channel.stream_unary(UPLOAD).future(held)
            until(lambda: here.partials())
            with here.channel(second) as line:
                waits = line.stream_unary(UPLOAD).future(iter(messages(path2, manifest2)))
                until(lambda: (turn := here.server._uploads._turns.get("second")) and turn.calls)
                waits.cancel()
            until(lambda: not here.server._uploads._turns["second"].calls, 10.0)
            waits = again.stream_unary(UPLOAD).future(iter(messages(path2, manifest2)))
            held.go.set()
            assert going.result(timeout=20) and waits.result(timeout=20)
        assert len(here.releases()) == 2


def test_an_upload_that_drips_is_ended_and_one_that_flows_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service, "_SLOW_UPLOAD", 2.0)
    with world(tmp_path) as here:
        silo = here.silo("north")
        path, manifest = payload(here, silo, 4 * CHUNK)

        def slowly(chunk: int, pause: float) -> Iterator[bytes]:
            for message in messages(path, manifest, chunk)[:200]:
                yield message
                time.sleep(pause)

        with here.channel(silo) as channel:
            call = channel.stream_unary(UPLOAD).future(slowly(100, 0.1))
            assert call.exception(timeout=20).code() is grpc.StatusCode.CANCELLED
            assert "bytes came in 2 s" in caplog.text
            for partial in here.partials():
                partial.unlink()
            assert channel.stream_unary(UPLOAD)(slowly(CHUNK, 0.8), timeout=60)  # longer than 2 s, but it moves
        assert len(here.releases()) == 1


def test_a_second_node_of_a_silo_is_told_to_the_first(tmp_path: Path) -> None:
    with world(tmp_path) as here:
        silo = here.silo("north")
        query = exchange_pb2.RequestsQuery(software="test").SerializeToString()
        with here.channel(silo) as one, here.channel(silo) as two:
            first = one.unary_stream(REQUESTS)(query)
            first.initial_metadata()
            second = two.unary_stream(REQUESTS)(query)
            second.initial_metadata()
            assert first.code() is grpc.StatusCode.ABORTED and "connected a second time" in first.details()
            assert second.is_active()
            second.cancel()


def test_a_failure_nobody_foresaw_is_logged_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dpdd.exchange")
    with world(tmp_path) as here:
        silo = here.silo("north")

        def broken(*_: object) -> None:
            raise RuntimeError("a secret of the coordinator's")

        monkeypatch.setattr(here.coordinator.registry, "seen", broken)
        with here.channel(silo) as channel, pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(BEAT)(b"", timeout=10)
        assert caught.value.code() is grpc.StatusCode.INTERNAL and "its log says why" in caught.value.details()
        assert "a secret" in caplog.text and "a secret" not in caught.value.details()
